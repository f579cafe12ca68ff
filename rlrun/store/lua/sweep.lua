-- needs: session
-- Ends what nobody uses any more: idle ACTIVE sessions, FINISHED ones that got no reward (or no export) in time.
local idle, waiting, limit, queue = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local time = now()
local swept = {}

local function sweep(state, seconds, reason_of)
  if #swept >= limit then
    return
  end
  local ids = redis.call('ZRANGEBYSCORE', P .. 'sessions:' .. string.lower(state), '-inf', stamp(time - seconds), 'LIMIT', 0, limit - #swept)
  for _, id in ipairs(ids) do
    local session = read_session(id)
    if queue and session.reward_set == '1' then
      move(session, RULES.FINISH_QUEUE[state], '', time)
    else
      move(session, RULES.DISCARD[state], reason_of(session), time)
    end
    swept[#swept + 1] = { id, session.state, session.reason, session.key, session.owner }
  end
end

sweep('ACTIVE', idle, function() return 'idle_timeout' end)
sweep('FINISHED', waiting, function(session) return session.reward_set == '1' and 'not_exported' or 'no_reward' end)
return swept
