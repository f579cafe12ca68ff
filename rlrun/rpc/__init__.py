"""gRPC between services: typed interfaces, servers, clients; a call inside one process skips the wire."""
