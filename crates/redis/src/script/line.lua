-- What token bucket, GCRA and both leaky buckets count: what was spent is a line that falls with time. It is stored as the
-- instant at which it reaches zero, in microseconds and the drops left over; here it is what is owed now, in drops.
-- `a` is drops a token, `b` drops a microsecond.
--
-- Setting the TTL of a key costs as much as changing its value. So a key lives longer than it has to, and its state ends with
-- the part of that slack that is left when the line reaches zero, in units of 1024 microseconds: until the slack is used up,
-- only the value is changed.
local LINE, LINE_LENGTH = '>BI6I4I7I4I2', 24
local UNIT, SPARE = 1024, 3906

-- What a line that is stored as `raw` is: its kind, `a` and `b`, and what is owed now, no more than can be counted.
local function read_line(raw)
  local kind, a, b, whole, part = unpack_from(LINE, raw)
  local ahead = whole - now
  if whole >= EXACT then
    local high, low = unpack_from('>I3I4', raw, 12)
    ahead = (high - floor(now / WORD)) * WORD + (low - now % WORD)
  end
  if ahead < 0 then return kind, a, b, 0 end
  return kind, a, b, min(ahead * b + part, EXACT)
end

-- The line that is at `spent` now, as it is stored with the whole while to spare.
local function write_line(kind, a, b, spent)
  local ahead = floor(spent / b)
  local whole, part = now + ahead, spent - ahead * b
  if whole < EXACT then return pack(LINE, kind, a, b, whole, part, SPARE) end
  local high, low = floor(now / WORD) + floor(ahead / WORD), now % WORD + ahead % WORD
  if low >= WORD then high, low = high + 1, low - WORD end
  return pack('>BI6I4I3I4I4I2', kind, a, b, high, low, part, SPARE)
end

-- The most that a key may owe, in drops. A part of a limit cuts nothing: another node may count the key by a larger part.
local function deepest(limit)
  return limit.is_part and EXACT / 2 - 1 or 2 * limit.a * limit.capacity
end

-- The answer to a request for `cost` by a key that owes `spent`: the outcome, what remains, when all is back, and the
-- wait that goes with the outcome.
local function answer(kind, a, b, capacity, spent, cost)
  local room = a * capacity - spent
  if cost > capacity then return NEVER, floor(max(room, 0) / a), ceil(spent / b), 0 end
  local asked = cost * a
  if asked > room then return DENY, floor(max(room, 0) / a), ceil(spent / b), ceil((asked - room) / b) end
  return ALLOW, floor((room - asked) / a), ceil((spent + asked) / b), kind == SHAPER and ceil(spent / b) or 0
end

