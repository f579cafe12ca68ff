-- Part of every script. KEYS[1] is the run's prefix: all keys share its hash tag.
local P = KEYS[1]

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function stamp(seconds)
  return string.format('%.6f', seconds)
end
