-- needs: session
-- All of a session, at one moment.
local id = ARGV[1]
local found = answer(id)
if #found[3] == 0 then
  return { 'MISSING' }
end
table.insert(found, redis.call('HVALS', session_key(id) .. ':interactions'))
table.insert(found, redis.call('HGETALL', session_key(id) .. ':rewards'))
return found
