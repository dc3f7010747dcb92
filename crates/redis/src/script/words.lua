-- The locals of the library.
local call, try = redis.call, redis.pcall
local pack, unpack_from = struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, byte, rep, format = string.sub, string.byte, string.rep, string.format

local EXACT = 9007199254740992
local LAST = EXACT - 1
local WORD = 4294967296

-- Outcomes, as replies name them.
local ALLOW, DENY, NEVER = 0, 1, 2

-- The numbers of kinds in bodies and states. A shaper's state is written as a GCRA's is.
local LEVEL, TAT, SHAPER, EVERY, CALENDAR, SLIDING, LOG, SLOTS = 1, 2, 3, 4, 5, 6, 7, 8

-- The states of keys that the library knows, by name; false if there is none.
local states = {}
-- The keys that Redis holds, and those to be written at the end.
local stored, changed = {}, {}

