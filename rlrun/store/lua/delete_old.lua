-- needs: session
-- Forgets sessions whose end is longer ago than the retention. A queued one is never forgotten.
local before, limit, deleted = stamp(now() - tonumber(ARGV[1])), tonumber(ARGV[2]), 0
for i = 3, #ARGV do
  local index = P .. 'sessions:' .. string.lower(ARGV[i])
  if deleted < limit then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', before, 'LIMIT', 0, limit - deleted)) do
      local session = read_session(id)
      local hash = session_key(id)
      redis.call('UNLINK', hash, hash .. ':interactions', hash .. ':rewards')
      redis.call('ZREM', index, id)
      if redis.call('GET', P .. 'key:' .. session.key) == id then
        redis.call('DEL', P .. 'key:' .. session.key)
      end
      if session.group ~= '' then
        local group = P .. 'group:' .. session.group
        if redis.call('HINCRBY', group, 'deleted', 1) >= tonumber(redis.call('HGET', group, 'placed') or 0) then
          redis.call('DEL', group)
        end
      end
      deleted = deleted + 1
    end
  end
end
return deleted
