-- needs: session
local id, reason = ARGV[1], ARGV[2]
local session = read_session(id)
if not session then
  return { 'MISSING' }
end
local to = RULES.DISCARD[session.state]
if not to then
  return refuse(session)
end
move(session, to, reason, now())
return answer(id)
