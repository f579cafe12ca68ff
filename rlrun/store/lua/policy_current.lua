-- The current version, with its parent.
local version = redis.call('HGET', P .. 'policy', 'version')
if not version then
  return { 'MISSING' }
end
return { 'OK', version, redis.call('HGETALL', P .. 'policy:' .. version) }
