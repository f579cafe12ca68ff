-- needs: session
-- Ends a session; with a reward (its own or the default) and a trainer it is queued at once.
local id, fence, queue, default_reward = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local session = read_session(id)
if not session then
  return { 'MISSING' }
end
if fence ~= '' and session.fence ~= fence then
  return { 'MOVED', id, session.fence }
end
local open = session.state == 'ACTIVE' or session.state == 'FINISHED'
if open and default_reward ~= '' and session.reward_set == '0' and session.last ~= '' then
  redis.call('HSET', session_key(id) .. ':rewards', session.last, default_reward)
  redis.call('HSET', session_key(id), 'reward_set', 1)
  session.reward_set = '1'
end
local rules = queue and session.reward_set == '1' and RULES.FINISH_QUEUE or RULES.FINISH
local to = rules[session.state]
if not to then
  return refuse(session)
end
move(session, to, '', now())
return answer(id)
