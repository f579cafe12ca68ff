-- needs: session
-- Drops a queued trajectory. Its entry goes even if the session is already gone.
local entry, id, reason = ARGV[1], ARGV[2], ARGV[3]
redis.call('XACK', P .. 'trajectories', 'trainer', entry)
redis.call('XDEL', P .. 'trajectories', entry)
local session = read_session(id)
if not session or session.entry ~= entry then
  return 0
end
local to = RULES.DISCARD[session.state]
if to == session.state then
  return 0
end
move(session, to, reason, now())
return 1
