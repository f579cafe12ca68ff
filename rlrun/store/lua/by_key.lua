-- needs: session
-- The session that a key opens, in whatever state it is.
local id = redis.call('GET', P .. 'key:' .. ARGV[1])
if not id or redis.call('EXISTS', session_key(id)) == 0 then
  return { 'MISSING' }
end
return answer(id)
