-- Keys that are leased: nodes may still spend some of what is charged, without asking. What is kept of that is what
-- tidegate-core's Ledger keeps. A leased state has the fields of the state that it would be without leases, and
--
--   epoch    the epoch that `o1` and `w1` belong to; `o0` and `w0` belong to the one before
--   o1, o0   the tokens that nodes may still spend, by the epoch in which they were granted or renewed
--   w1, w0   the sum of the demand of the nodes that asked
--   part     the window, or the part of one, with which the tokens end; false if they end with their epochs
--   leased   the operations on it, which take the place of those of its kind
--
-- It is stored as the state without leases, but with another first byte and with the numbers above at its end: 43 bytes for
-- a bucket, in whose line no slack is counted. Every state is brought to the present when it is read. Nothing of a leased
-- key drains below what is outstanding.
local LEASED, LEASED_IN_PART = 16, 32
local TAIL, TAIL_LENGTH, MOST_TOKENS, EPOCH = '>I5I5I5I3I3', 21, 1099511627775, 2000000

-- The operations on leased states, once they are needed, and the function that creates them.
local record
local function recording()
  local leased = {}
  local present = floor(now / EPOCH)

  local function end_of(epoch)
    return min((epoch + 1) * EPOCH, LAST)
  end

  -- The quotient, rounded up. A division of large doubles might round it down.
  local function quotient(number, by)
    local rest = number % by
    if rest == 0 then return number / by end
    return (number - rest) / by + 1
  end

  local function outstanding(state)
    return state.o1 + state.o0
  end

  local function is_over(state)
    return state.o1 == 0 and state.o0 == 0 and state.w1 == 0 and state.w0 == 0
  end

  -- Makes a state an ordinary one again if nothing of its record matters any more.
  local function conclude(state)
    if is_over(state) then state.leased, state.is_large = nil, state.kind == SLIDING and state.b > 1 end
  end

  -- The least that a bucket's key owes, in drops.
  local function least(state)
    return min(outstanding(state) * state.a, EXACT)
  end

  -- The window or part that counts now, and when it ends; false for buckets.
  local function part_of(state)
    if state.kind <= SHAPER then return false, LAST end
    if state.kind == SLIDING then
      local number = max(floor(now / state.a), state.number)
      return number, min((number + 1) * state.a, LAST)
    end
    local around = kind_of(state.kind).around
    local start, finish = around(state.kind, state.a, now)
    if state.start <= start then return start, finish end
    start, finish = around(state.kind, state.a, state.start)
    return start, finish
  end

  -- Leaves no less charged at an instant, now or earlier, than is outstanding. Until a bucket has come to the present, its
  -- line is at `level` at the instant `at`.
  local function keep_floor(state, instant)
    local tokens = outstanding(state)
    if tokens == 0 then return end
    if state.kind <= SHAPER then
      local lowest, level = least(state), nil
      if instant >= state.at then
        level = max(state.level - (instant - state.at) * state.b, 0)
      else
        level = min(state.level + (state.at - instant) * state.b, EXACT)
      end
      if level < lowest then state.at, state.level = instant, lowest end
    elseif state.kind == SLIDING then
      local shift, counters = max(floor(instant / state.a) - state.number, 0), {}
      for back = 0, state.b do counters[back + 1] = state.counters[back - shift + 1] or 0 end
      -- Twice the largest limit that there can be: more cannot be weighted exactly, and denies no more.
      local most = 2 * min(floor(EXACT / 4 / state.a), 1099511627776)
      counters[1] = max(counters[1], min(tokens, most))
      state.number, state.counters = state.number + shift, counters
    else
      local start = kind_of(state.kind).around(state.kind, state.a, instant)
      if state.start < start then state.start, state.spent = start, 0 end
      state.spent = max(state.spent, tokens)
    end
  end

  -- The same at the present instant.
  local function keep_floor_now(state)
    if state.kind <= SHAPER then
      state.spent = max(state.spent, least(state))
    else
      keep_floor(state, now)
    end
  end

  local function end_epoch(state)
    state.o1, state.o0, state.w1, state.w0 = 0, state.o1, 0, state.w1
    state.epoch = state.epoch + 1
  end

  -- Brings a leased state to the present: what it owes drains, and leases of past epochs and parts end.
  local function advance(state)
    if state.epoch > present + 1 then
      -- The clock has stepped back. Leases do not end early because of that.
      state.epoch, state.o1, state.o0 = present + 1, outstanding(state), 0
      state.w1, state.w0, state.is_moved = max(state.w1, state.w0), 0, true
    end
    local of = kind_of(state.kind)
    if state.part then
      if of.moved(state, state) then
        state.part, state.is_moved = false, true
      elseif state.part ~= part_of(state) then
        state.part, state.o1, state.o0 = false, 0, 0
      end
    end
    while state.epoch < present and outstanding(state) > 0 do
      keep_floor(state, end_of(state.epoch))
      end_epoch(state)
    end
    if state.epoch < present then
      state.w1, state.w0 = 0, state.epoch + 1 == present and state.w1 or 0
      state.epoch = present
    end
    if state.kind <= SHAPER then
      if now >= state.at then
        state.spent = max(state.level - (now - state.at) * state.b, 0)
      else
        state.spent = min(state.level + (state.at - now) * state.b, EXACT)
      end
    else
      local moved = of.moved(state, state)
      if moved then state.start, state.spent, state.number, state.counters =
        moved.start, moved.spent, moved.number, moved.counters
      end
    end
    keep_floor_now(state)
  end

  -- The state that is stored as `raw`.
  function leased.read(raw)
    local tag = byte(raw)
    local kind = tag % LEASED
    if kind < LEVEL or kind > SLIDING or #raw < 18 + TAIL_LENGTH then return nil end
    local plain = pack('>B', kind) .. sub(raw, 2, -TAIL_LENGTH - 1)
    local state = kind_of(kind).read(kind <= SHAPER and plain .. '\0\0' or plain)
    if not state then return nil end
    state.epoch, state.o1, state.o0, state.w1, state.w0 = unpack_from(TAIL, raw, #raw - TAIL_LENGTH + 1)
    state.part = false
    if kind <= SHAPER then
      state.at, state.level, state.line = now, state.spent, nil
      if state.spent == 0 then state.at, state.level = unpack_from('>I7I4', raw, 12) end
    elseif tag >= LEASED_IN_PART then
      state.part = kind == SLIDING and state.number or state.start
    end
    advance(state)
    -- Such a state is stored as long as there is demand, even if nothing is owed.
    state.leased, state.is_large, state.is_recorded = leased, true, true
    return state
  end

  -- What a bucket's key owes under a limit: at most the limit's bound, but no less than is outstanding.
  local function owed(limit, state)
    return max(min(state.spent, deepest(limit)), least(state))
  end

  -- Holds a state to its limit's bound.
  function leased.hold(limit, state)
    if state.kind <= SHAPER then state.spent = owed(limit, state) end
  end

  -- Does the same after a decision that charges nothing. Stores the state if that, a clock that stepped back or another limit
  -- has changed it, if its record is over, or if tokens were counted in another part of a sliding window.
  function leased.settle(charge, state)
    local is_spread = state.kind == SLIDING and not state.part and outstanding(state) > 0
    local is_changed, before = state.is_moved or is_spread or is_over(state), state.spent
    leased.hold(charge, state)
    conclude(state)
    if is_changed or state.spent ~= before or states[charge.name] ~= state then keep(charge.name, state) end
  end

  -- How long until a bucket that owes `spent` is down to `target` drops, if nobody spends and no node returns anything.
  local function time_until(state, spent, target)
    local at, first, second, epoch = now, state.o1, state.o0, state.epoch
    while min((first + second) * state.a, EXACT) > target do
      local ends = end_of(epoch)
      spent = max(spent - (ends - at) * state.b, min((first + second) * state.a, EXACT), 0)
      at, first, second, epoch = ends, 0, first, epoch + 1
    end
    return min(at - now + quotient(max(spent - target, 0), state.b), EXACT)
  end

  -- The answer to a request for `cost` by a key whose bucket owes `spent`.
  function leased.answer(limit, state, cost, spent)
    if state.kind > SHAPER then return kind_of(state.kind).look(limit, state, cost) end
    local a, capacity = limit.a, limit.capacity
    local most = deepest(limit)
    local outcome, remaining, reset, wait = answer(limit.kind, a, limit.b, capacity, min(spent, most), cost)
    if outstanding(state) == 0 then return outcome, remaining, reset, wait end
    if outcome == DENY then wait = max(time_until(state, spent, (capacity - cost) * a), 1) end
    if outcome == ALLOW then spent = min(spent + cost * a, max(most, spent)) end
    return outcome, remaining, time_until(state, spent, 0), wait
  end

  function leased.look(limit, state, cost)
    return leased.answer(limit, state, cost, state.kind <= SHAPER and owed(limit, state))
  end

  -- A leased state comes to the present by itself.
  function leased.moved()
    return nil
  end

  -- The bound of the limit is for decisions: a receipt is settled under the limit of its time.
  function leased.charge(limit, state, cost, id)
    local charged = kind_of(state.kind).charge(limit, state, cost, id)
    conclude(state)
    return charged
  end

  function leased.mark(limit, state)
    return kind_of(state.kind).mark(limit, state)
  end

  function leased.credit(limit, state, cost)
    local given = kind_of(state.kind).credit(limit, state, cost)
    keep_floor_now(state)
    conclude(state)
    return given
  end

  function leased.refund(limit, state, cost, mark)
    local given = kind_of(state.kind).refund(limit, state, cost, mark)
    keep_floor_now(state)
    conclude(state)
    return given
  end

  -- Forgets all that was spent and is not outstanding. Returns whether anything is left.
  function leased.reset(state)
    for field, value in pairs(kind_of(state.kind).fresh(state)) do state[field] = value end
    state.is_large, state.line = true, nil
    keep_floor_now(state)
    -- A window ahead, from before the clock stepped back, is forgotten. The leases last beyond its end here.
    if state.part and state.part ~= part_of(state) then state.part = false end
    return outstanding(state) > 0
  end

  -- Whether a limit of this kind can be leased.
  function leased.can_be(kind)
    return kind <= SLIDING and kind ~= SHAPER
  end

  -- The record of `old` beside the state `new` that it was carried over to.
  function leased.carry(limit, old, new)
    if is_over(old) or not leased.can_be(limit.kind) then return new end
    new.epoch, new.o1, new.o0, new.w1, new.w0 = old.epoch, old.o1, old.o0, old.w1, old.w0
    new.part, new.leased, new.is_large = false, leased, true
    keep_floor_now(new)
    return new
  end

  function leased.is_blank(state)
    if outstanding(state) > 0 or not kind_of(state.kind).is_blank(state) then return false end
    return not state.is_recorded or is_over(state)
  end

  -- How long a state counts: until its last lease has ended, and until what stays charged then has recovered.
  local function counts_for(state, without_leases)
    local ends = end_of(state.epoch + 1)
    if state.kind <= SHAPER then return max(time_until(state, state.spent, 0), ends - now) end
    if state.part or outstanding(state) == 0 then return max(without_leases, ends - now) end
    if state.kind == SLIDING then
      return max(without_leases, (floor(ends / state.a) + state.b + 2) * state.a - now)
    end
    local _, finish = kind_of(state.kind).around(state.kind, state.a, ends)
    return max(without_leases, finish - now, ends - now)
  end

  function leased.write(state, name)
    local plain, life_of_plain = kind_of(state.kind).write(state, name)
    if is_over(state) then return plain, life_of_plain end
    local tail = pack(TAIL, state.epoch, min(state.o1, MOST_TOKENS), min(state.o0, MOST_TOKENS), state.w1, state.w0)
    local tag = state.kind + (state.part and LEASED_IN_PART or LEASED)
    local body = sub(plain, 2, state.kind <= SHAPER and 22 or -1)
    return pack('>B', tag) .. body .. tail, counts_for(state, life_of_plain)
  end

  -- A state without leases, with a record of none.
  function leased.begin(state)
    local twin = {}
    for field, value in pairs(state) do twin[field] = value end
    twin.is_changed, twin.line = nil, nil
    twin.epoch, twin.o1, twin.o0, twin.w1, twin.w0 = present, 0, 0, 0, 0
    twin.part, twin.leased, twin.is_large = false, leased, true
    return twin
  end

  leased.part_of, leased.keep_floor, leased.outstanding = part_of, keep_floor_now, outstanding
  leased.quotient, leased.end_of, leased.conclude = quotient, end_of, conclude
  return leased
end
