-- Writes one interaction. The hot path: no more reads than needed, a bare 1 as answer.
local id, fence, interaction, bytes, rewardless = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local hash = P .. 'session:' .. id
local found = redis.call('HMGET', hash, 'fence', 'state', 'reason')
if not found[1] then
  return { 'MISSING' }
end
if found[1] ~= fence then
  return { 'MOVED', id, found[1] }
end
if not RULES.RECORD[found[2]] then
  return { 'GONE', id, found[2], found[3] }
end
local time = stamp(now())
if redis.call('HSET', hash .. ':interactions', interaction, bytes) == 1 then
  redis.call('HINCRBY', hash, 'n', 1)
end
if rewardless == '1' then
  redis.call('HSET', hash, 'updated', time)
else
  redis.call('HSET', hash, 'updated', time, 'last', interaction)
end
redis.call('ZADD', P .. 'sessions:active', time, id)
return 1
