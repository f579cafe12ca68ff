-- A number that no version had before.
local counters = redis.call('HMGET', P .. 'policy', 'next_version', 'version')
local version = math.max(tonumber(counters[1] or 0), tonumber(counters[2] or 0)) + 1
redis.call('HSET', P .. 'policy', 'schema', SCHEMA, 'next_version', version)
return version
