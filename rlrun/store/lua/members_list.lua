-- The live members of a role; ids whose lease ended are forgotten.
local role, alive = ARGV[1], {}
for _, id in ipairs(redis.call('SMEMBERS', P .. 'members:' .. role)) do
  local bytes = redis.call('GET', P .. 'member:' .. role .. ':' .. id)
  if bytes then
    alive[#alive + 1] = bytes
  else
    redis.call('SREM', P .. 'members:' .. role, id)
  end
end
return alive
