"""The benchmark's parts: text, mock engine, load generator, hosts, cases, report."""
