-- needs: session
local id, fence, interaction, reward, queue = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local session = read_session(id)
if not session then
  return { 'MISSING' }
end
if session.fence ~= fence then
  return { 'MOVED', id, session.fence }
end
local rules = queue and RULES.REWARD_QUEUE or RULES.REWARD
local to = rules[session.state]
if not to then
  return refuse(session)
end
if interaction == '' then
  interaction = session.last
end
if interaction == '' or redis.call('HEXISTS', session_key(id) .. ':interactions', interaction) == 0 then
  return { 'NO_INTERACTION', id, interaction }
end
local time = now()
redis.call('HSET', session_key(id) .. ':rewards', interaction, reward)
redis.call('HSET', session_key(id), 'reward_set', 1, 'updated', stamp(time))
if session.state == 'ACTIVE' then
  redis.call('ZADD', P .. 'sessions:active', stamp(time), id)
end
move(session, to, '', time)
return { 'OK', interaction }
