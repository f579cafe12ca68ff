-- Makes a version the current one. Versions only grow; the same publication may be repeated.
local version, path, fingerprint, parent, step, lineage = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local found = redis.call('HMGET', P .. 'policy', 'version', 'fingerprint', 'next_version')
local current = tonumber(found[1] or -1)
if tonumber(version) == current and found[2] == fingerprint then
  return { 'OK' }
end
if tonumber(version) <= current then
  return { 'CONFLICT', 'policy', current }
end
redis.call('HSET', P .. 'policy', 'schema', SCHEMA, 'version', version, 'path', path, 'fingerprint', fingerprint,
  'lineage', lineage, 'step', step, 'next_version', math.max(tonumber(found[3] or 0), tonumber(version)))
redis.call('HSET', P .. 'policy:' .. version, 'schema', SCHEMA, 'path', path, 'fingerprint', fingerprint,
  'parent', parent, 'step', step, 'lineage', lineage)
return { 'OK' }
