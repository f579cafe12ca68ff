-- Takes or renews a lease.
local role, id, bytes, milliseconds = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
redis.call('SET', P .. 'member:' .. role .. ':' .. id, bytes, 'PX', milliseconds)
redis.call('SADD', P .. 'members:' .. role, id)
return 1
