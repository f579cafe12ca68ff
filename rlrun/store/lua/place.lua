-- needs: session
-- Admits, binds the key, creates the session.
local id, task, group, group_size, key_hash, owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local mode, max_concurrent, staleness, batch = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

if redis.call('EXISTS', session_key(id)) == 1 then
  return { 'CONFLICT', 'session', id }
end
local bound = redis.call('GET', P .. 'key:' .. key_hash)
if bound and redis.call('HGET', session_key(bound), 'state') == 'ACTIVE' then
  return { 'CONFLICT', 'key', bound }
end
local group_key = P .. 'group:' .. group
if group ~= '' then
  local size = redis.call('HGET', group_key, 'size')
  if size and size ~= group_size then
    return { 'CONFLICT', 'group', size }
  end
end

local counters = redis.call('HMGET', P .. 'capacity', 'running', 'accepted', 'granted', 'step')
local running, accepted = tonumber(counters[1] or 0), tonumber(counters[2] or 0)
local granted, step = tonumber(counters[3] or 0), tonumber(counters[4] or 0)
local capacity = math.max(1, max_concurrent) - running
if mode == 'Staleness' then
  capacity = math.min(capacity, (staleness + step + 1) * math.max(1, batch) - (accepted + running))
elseif mode == 'Granted' then
  capacity = math.min(capacity, granted)
end
if capacity < 1 then
  return { 'FULL', capacity, running, accepted, granted, step }
end

local time = stamp(now())
redis.call('HSET', session_key(id), 'schema', SCHEMA, 'state', 'ACTIVE', 'reason', '', 'task', task,
  'group', group, 'group_size', group_size, 'key', key_hash, 'owner', owner, 'fence', 1, 'n', 0,
  'created', time, 'updated', time, 'ended', '', 'reward_set', 0, 'last', '', 'entry', '')
redis.call('SET', P .. 'key:' .. key_hash, id)
redis.call('ZADD', P .. 'sessions:active', time, id)
redis.call('HINCRBY', P .. 'capacity', 'running', 1)
if mode == 'Granted' then
  redis.call('HINCRBY', P .. 'capacity', 'granted', -1)
end
if group ~= '' then
  redis.call('HSETNX', group_key, 'schema', SCHEMA)
  redis.call('HSETNX', group_key, 'size', group_size)
  redis.call('HINCRBY', group_key, 'placed', 1)
end
return answer(id)
