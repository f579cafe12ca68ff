-- Makes the stream and its group, from the first entry on: what was queued before the first trainer started is trained too.
local made = redis.pcall('XGROUP', 'CREATE', P .. 'trajectories', 'trainer', '0', 'MKSTREAM')
if made.err and string.sub(made.err, 1, 9) ~= 'BUSYGROUP' then
  return made
end
return 1
