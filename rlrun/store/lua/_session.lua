-- Reads a session and moves it between states, with the counters and indexes that belong to the move.
local function session_key(id)
  return P .. 'session:' .. id
end

local function read_session(id)
  local flat = redis.call('HGETALL', session_key(id))
  if #flat == 0 then
    return nil
  end
  local session = { id = id }
  for i = 1, #flat, 2 do
    session[flat[i]] = flat[i + 1]
  end
  return session
end

local function answer(id)
  return { 'OK', id, redis.call('HGETALL', session_key(id)) }
end

local function refuse(session)
  return { 'GONE', session.id, session.state, session.reason }
end

local function group_count(session, field, amount)
  if session.group ~= '' then
    redis.call('HINCRBY', P .. 'group:' .. session.group, field, amount)
  end
end

-- `to` comes from RULES. A move to the same state changes nothing.
local function move(session, to, reason, time)
  local from = session.state
  if from == to then
    return
  end
  local id, hash = session.id, session_key(session.id)
  redis.call('ZREM', P .. 'sessions:' .. string.lower(from), id)
  redis.call('ZADD', P .. 'sessions:' .. string.lower(to), stamp(time), id)
  redis.call('HSET', hash, 'state', to, 'reason', reason, 'updated', stamp(time))
  session.state, session.reason = to, reason
  if from == 'ACTIVE' then
    redis.call('HSET', hash, 'ended', stamp(time))
    redis.call('HINCRBY', P .. 'capacity', 'running', -1)
    group_count(session, 'closed', 1)
  end
  if to == 'QUEUED' then
    local entry = redis.call('XADD', P .. 'trajectories', '*', 'schema', SCHEMA,
      'session', id, 'group', session.group, 'group_size', session.group_size)
    redis.call('HSET', hash, 'entry', entry)
    session.entry = entry
    redis.call('HINCRBY', P .. 'capacity', 'accepted', 1)
    group_count(session, 'queued', 1)
  elseif from == 'QUEUED' then
    redis.call('XACK', P .. 'trajectories', 'trainer', session.entry)
    redis.call('XDEL', P .. 'trajectories', session.entry)
    if to == 'DISCARDED' then
      -- What will not be trained must not use up the staleness budget.
      redis.call('HINCRBY', P .. 'capacity', 'accepted', -1)
      group_count(session, 'queued', -1)
    end
  end
end
