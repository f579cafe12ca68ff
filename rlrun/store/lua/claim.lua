-- needs: session
-- Moves a session whose owner's lease is gone; the fence makes the old owner's writes fail.
local id, owner = ARGV[1], ARGV[2]
local current = redis.call('HGET', session_key(id), 'owner')
if not current then
  return { 'MISSING' }
end
if redis.call('EXISTS', P .. 'member:dataproxy:' .. current) == 0 then
  redis.call('HSET', session_key(id), 'owner', owner)
  redis.call('HINCRBY', session_key(id), 'fence', 1)
end
return answer(id)
