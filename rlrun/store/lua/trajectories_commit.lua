-- needs: session
-- The checkpoint that contains these trajectories is in place. ARGV: step, batch size, then pairs of entry and session.
local step, trained, time = tonumber(ARGV[1]), 0, now()
for i = 3, #ARGV, 2 do
  local entry, session = ARGV[i], read_session(ARGV[i + 1])
  redis.call('XACK', P .. 'trajectories', 'trainer', entry)
  redis.call('XDEL', P .. 'trajectories', entry)
  if session and session.entry == entry then
    local to = RULES.COMMIT[session.state]
    if to and to ~= session.state then
      move(session, to, '', time)
      trained = trained + 1
    end
  end
end
if step > tonumber(redis.call('HGET', P .. 'capacity', 'step') or 0) then
  redis.call('HSET', P .. 'capacity', 'step', step,
    -- What was trained counts as full batches: a step of more sessions must not eat up the staleness budget.
    'accepted', step * math.max(1, tonumber(ARGV[2])) + redis.call('ZCARD', P .. 'sessions:queued'))
end
return trained
