-- needs: session
local session = read_session(ARGV[1])
if not session then
  return { 'MISSING' }
end
local to = RULES.EXPORT[session.state]
if not to then
  return refuse(session)
end
move(session, to, '', now())
return answer(session.id)
