-- Sliding window counter: what was spent in the present part of the window and in the `b` parts before it, each `a` long.
-- The oldest counts for the share of it that the window still covers.
makers[SLIDING] = function()
  local sliding = {}

  -- The instant from which a state is read, how many parts have begun since it was written, and how far into the present
  -- part that is. A state that lies ahead, because the clock stepped back, is read from its own beginning.
  local function view(state)
    local a = state.a
    local instant = max(now, min(state.number * a, LAST))
    return instant, floor(instant / a) - state.number, instant % a
  end

  -- What was spent in the part `back` parts before the present one.
  local function spent(state, shift, back)
    return state.counters[back - shift + 1] or 0
  end

  local function younger_than(state, shift, back)
    local sum = 0
    for index = 1, back - shift do sum = sum + (state.counters[index] or 0) end
    return sum
  end

  -- The estimate, times the length of a part.
  local function weight(state, shift, into)
    local a, b = state.a, state.b
    return spent(state, shift, b) * (a - into) + younger_than(state, shift, b) * a
  end

  function sliding.read(raw)
    if #raw < 18 then return nil end
    local _, a, b, number = unpack_from('>BI6I4I6', raw)
    local width = (#raw - 17) / (b + 1)
    if b < 1 or b > 360 or width > 7 or width ~= floor(width) then return nil end
    local counters = { unpack_from('>' .. rep('I' .. width, b + 1), raw, 18) }
    counters[b + 2] = nil
    return {
      kind = SLIDING, a = a, b = b, number = number, counters = counters, is_large = b > 1,
    }
  end

  function sliding.fresh(limit)
    return {
      kind = SLIDING, a = limit.a, b = limit.b, number = 0, counters = {}, is_large = limit.b > 1,
    }
  end

  -- How long after the instant of the view the estimate has fallen far enough for `cost`.
  local function wait(limit, state, shift, into, cost)
    local a, b = state.a, state.b
    local budget = (limit.capacity - cost) * a
    local stays, ahead = younger_than(state, shift, b), 0
    while stays * a > budget do
      ahead = ahead + 1
      stays = stays - spent(state, shift, b - ahead)
    end
    local fades = spent(state, shift, b - ahead)
    local covered = a
    if fades > 0 then covered = min(floor((budget - stays * a) / fades), a) end
    return ahead * a + (a - covered) - into
  end

  local function reset_after(state, shift, spends)
    local b, back = state.b, 0
    if not spends then
      while back <= b and spent(state, shift, back) == 0 do back = back + 1 end
      if back > b then return 0 end
    end
    return max(min((state.number + shift + b + 1 - back) * state.a, LAST) - now, 0)
  end

  function sliding.look(limit, state, cost)
    local a, most = state.a, limit.capacity
    local instant, shift, into = view(state)
    local left = most * a - weight(state, shift, into)
    local room = floor(max(left, 0) / a)
    if cost > most then return NEVER, room, reset_after(state, shift, false), 0 end
    if cost * a > left then
      local until_then = wait(limit, state, shift, into, cost) + (instant - now)
      return DENY, room, reset_after(state, shift, false), until_then
    end
    return ALLOW, room - cost, reset_after(state, shift, cost > 0), 0
  end

  function sliding.moved(limit, state)
    local present = floor(now / limit.a)
    if state.number <= present + limit.b then return nil end
    local counters = {}
    for index = 1, limit.b + 1 do counters[index] = state.counters[index] or 0 end
    return {
      kind = SLIDING, a = state.a, b = state.b, number = present + 1, counters = counters,
      is_large = state.is_large,
    }
  end

  -- Moves a state to the present part.
  local function slide(state)
    local _, shift = view(state)
    local counters = {}
    for back = 0, state.b do counters[back + 1] = spent(state, shift, back) end
    state.number, state.counters = state.number + shift, counters
  end

  function sliding.charge(limit, state, cost)
    slide(state)
    local _, shift, into = view(state)
    local estimate = ceil(weight(state, shift, into) / state.a)
    local charged = min(cost, max(2 * limit.capacity - estimate, 0))
    state.counters[1] = state.counters[1] + charged
    return charged
  end

  function sliding.mark(_, state)
    return pack('>I7I4', state.number, 0)
  end

  function sliding.refund(_, state, cost, mark)
    slide(state)
    local index = state.number - unpack_from('>I7', mark) + 1
    local given = min(cost, state.counters[index] or 0)
    if given > 0 then state.counters[index] = state.counters[index] - given end
    return given
  end

  -- From the youngest part first, where it helps for longest.
  function sliding.credit(_, state, cost)
    slide(state)
    local left = cost
    for index = 1, state.b + 1 do
      local given = min(left, state.counters[index])
      state.counters[index], left = state.counters[index] - given, left - given
    end
    return cost - left
  end

  function sliding.spent(state)
    local _, shift, into = view(state)
    return ceil(weight(state, shift, into) / state.a)
  end

  -- How long something that was spent in a state counts. A part ahead counts even if nothing was spent in it: it says
  -- when the present one is.
  local function counts_for(state)
    local youngest = 1
    while youngest <= state.b + 1 and (state.counters[youngest] or 0) == 0 do youngest = youngest + 1 end
    if youngest > state.b + 1 then
      if state.number <= floor(now / state.a) then return 0 end
      youngest = 1
    end
    return (state.number + state.b + 2 - youngest) * state.a - now
  end

  function sliding.is_blank(state)
    return counts_for(state) <= 0
  end

  function sliding.write(state)
    local most, width = 0, 1
    for index = 1, state.b + 1 do
      state.counters[index] = state.counters[index] or 0
      most = max(most, state.counters[index])
    end
    while most >= 256 ^ width do width = width + 1 end
    local counters = pack('>' .. rep('I' .. width, state.b + 1), unpack(state.counters))
    return pack('>BI6I4I6', SLIDING, state.a, state.b, state.number) .. counters, counts_for(state)
  end

  return sliding
end
