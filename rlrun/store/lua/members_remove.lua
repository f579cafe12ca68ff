-- Ends a lease at once.
redis.call('DEL', P .. 'member:' .. ARGV[1] .. ':' .. ARGV[2])
return redis.call('SREM', P .. 'members:' .. ARGV[1], ARGV[2])
