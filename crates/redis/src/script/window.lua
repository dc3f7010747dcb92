-- Fixed windows: what was spent since the window's start. `a` is the windows' length, or which calendar.
makers[EVERY] = function()
  local window = {}
  local DAY = 86400000000

  -- The day, counted from the epoch, on which a month begins. Years are counted from March: leap days come last.
  local function first_day(year, month)
    local from_march = month - 3
    if month <= 2 then year, from_march = year - 1, month + 9 end
    local leap_days = floor(year / 4) - floor(year / 100) + floor(year / 400)
    return year * 365 + leap_days + floor((153 * from_march + 2) / 5) - 719468
  end

  local function calendar(which, instant)
    local day = floor(instant / DAY)
    local from, to = day, day + 1
    if which == 1 then
      local monday = floor((day + 3) / 7) * 7
      from, to = max(monday - 3, 0), monday + 4
    elseif which >= 2 then
      local year = 1970 + floor(day / 365)
      if first_day(year, 1) > day then year = year - 1 end
      from, to = first_day(year, 1), first_day(year + 1, 1)
      if which == 2 then
        local month = 12
        while first_day(year, month) > day do month = month - 1 end
        from = first_day(year, month)
        if month < 12 then to = first_day(year, month + 1) end
      end
    end
    return min(from * DAY, LAST), min(to * DAY, LAST)
  end

  function window.around(kind, a, instant)
    if kind == CALENDAR then return calendar(a, instant) end
    local start = instant - instant % a
    return start, min(start + a, LAST)
  end
  local around = window.around

  -- The windows around the present instant, by kind and length: most states of a call share them.
  local starts, ends = { [EVERY] = {}, [CALENDAR] = {} }, { [EVERY] = {}, [CALENDAR] = {} }
  local function present(kind, a)
    local start = starts[kind][a]
    if not start then
      start, ends[kind][a] = around(kind, a, now)
      starts[kind][a] = start
    end
    return start, ends[kind][a]
  end

  -- The start of what counts now, what was spent in it, and when it ends. A window that has not begun was opened by a
  -- clock that has since stepped back, and goes on counting.
  local function current(state)
    local start, finish = present(state.kind, state.a)
    if state.start == start then return start, state.spent, finish end
    if state.start < start then return start, 0, finish end
    local _, later = around(state.kind, state.a, state.start)
    return state.start, state.spent, later
  end

  function window.read(raw)
    if #raw ~= 25 then return nil end
    local kind, a, b, start, spent = unpack_from('>BI6I4I7I7', raw)
    return { kind = kind, a = a, b = b, start = start, spent = spent }
  end

  function window.fresh(limit)
    return { kind = limit.kind, a = limit.a, b = limit.b, start = 0, spent = 0 }
  end

  function window.look(limit, state, cost)
    local _, spent, finish = current(state)
    local room, most, reset = max(limit.capacity - spent, 0), limit.capacity, finish - now
    if reset < 0 then reset = 0 end
    if cost > most then return NEVER, room, reset, 0 end
    if cost > most - spent then return DENY, room, reset, max(reset, 1) end
    return ALLOW, room - cost, reset, 0
  end

  function window.moved(limit, state)
    local start, finish = present(limit.kind, limit.a)
    if state.start <= finish then return nil end
    return { kind = state.kind, a = state.a, b = state.b, start = start, spent = state.spent }
  end

  function window.charge(limit, state, cost)
    local start, spent = current(state)
    state.start, state.spent = start, min(spent + cost, max(2 * limit.capacity, spent))
    return state.spent - spent
  end

  function window.mark(_, state)
    return pack('>I7I4', state.start, 0)
  end

  function window.credit(_, state, cost)
    local start, spent = current(state)
    local given = min(cost, spent)
    state.start, state.spent = start, spent - given
    return given
  end

  function window.refund(limit, state, cost, mark)
    local start = current(state)
    if unpack_from('>I7', mark) ~= start then return 0 end
    return window.credit(limit, state, cost)
  end

  function window.spent(state)
    local _, spent = current(state)
    return spent
  end

  -- A window ahead counts even if nothing was spent in it: it says when it ends.
  function window.is_blank(state)
    local start, spent, finish = current(state)
    return finish <= now or spent == 0 and start == present(state.kind, state.a)
  end

  function window.write(state)
    local _, _, finish = current(state)
    return pack('>BI6I4I7I7', state.kind, state.a, state.b, state.start, state.spent), finish - now
  end

  kinds[EVERY], kinds[CALENDAR] = window, window
  return window
end
makers[CALENDAR] = makers[EVERY]
