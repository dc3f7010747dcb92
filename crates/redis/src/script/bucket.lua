-- Token bucket, GCRA and both leaky buckets: what was spent is a line that falls with time. It is stored as the instant
-- at which it reaches zero, in microseconds and the drops left over; here it is what is owed now, in drops.
-- `a` is drops a token, `b` drops a microsecond.
local LINE = '>BI6I4I7I4'

local bucket = {}

function bucket.read(raw)
  if #raw ~= 22 then return nil end
  local kind, a, b, whole, part = unpack_from(LINE, raw)
  local ahead = whole - now
  if whole >= EXACT then
    local high, low = unpack_from('>I3I4', raw, 12)
    ahead = (high - floor(now / WORD)) * WORD + (low - now % WORD)
  end
  local spent = 0
  if ahead >= 0 then spent = min(ahead * b + part, EXACT) end
  return { kind = kind, shape = kind == SHAPER and TAT or kind, a = a, b = b, spent = spent, line = raw }
end

function bucket.fresh(limit)
  return { kind = limit.kind, shape = limit.shape, a = limit.a, b = limit.b, spent = 0 }
end

-- The line that is at `spent` now, as it is stored.
local function line(kind, a, b, spent)
  local ahead = floor(spent / b)
  local whole, part = now + ahead, spent - ahead * b
  if whole < EXACT then return pack(LINE, kind, a, b, whole, part) end
  local high, low = floor(now / WORD) + floor(ahead / WORD), now % WORD + ahead % WORD
  if low >= WORD then high, low = high + 1, low - WORD end
  return pack('>BI6I4I3I4I4', kind, a, b, high, low, part)
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

function bucket.look(limit, state, cost)
  return answer(limit.kind, limit.a, limit.b, limit.capacity, state.spent, cost)
end

local function deepest(limit)
  return 2 * limit.a * limit.capacity
end

function bucket.moved(limit, state)
  local most = deepest(limit)
  if state.spent <= most then return nil end
  return { kind = limit.kind, shape = limit.shape, a = limit.a, b = limit.b, spent = most }
end

function bucket.charge(limit, state, cost)
  state.kind, state.line = limit.kind, nil
  state.spent = min(state.spent + cost * limit.a, max(deepest(limit), state.spent))
end

-- A shaper's mark is the end of its queue; other buckets need none.
function bucket.mark(limit, state)
  if limit.kind ~= SHAPER then return pack('>I7I4', 0, 0) end
  return sub(state.line or line(SHAPER, state.a, state.b, state.spent), 12)
end

local function give_back(limit, state, cost)
  local before = state.spent
  state.spent, state.line = max(before - cost * limit.a, 0), nil
  return floor((before - state.spent) / limit.a)
end

function bucket.credit(limit, state, cost)
  if limit.kind == SHAPER then return 0 end
  return give_back(limit, state, cost)
end

function bucket.refund(limit, state, cost, mark)
  if limit.kind == SHAPER and bucket.mark(limit, state) ~= mark then return 0 end
  return give_back(limit, state, cost)
end

function bucket.spent(state)
  return ceil(state.spent / state.a)
end

function bucket.is_blank(state)
  return state.spent == 0
end

function bucket.write(state)
  return line(state.kind, state.a, state.b, state.spent), ceil(state.spent / state.b)
end

kinds[LEVEL], kinds[TAT], kinds[SHAPER] = bucket, bucket, bucket
