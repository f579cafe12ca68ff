-- needs: session
-- The newest sessions of one state.
local found = {}
for i, id in ipairs(redis.call('ZREVRANGE', P .. 'sessions:' .. string.lower(ARGV[1]), 0, tonumber(ARGV[2]) - 1)) do
  found[i] = answer(id)
end
return found
