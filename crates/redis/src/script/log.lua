-- Sliding window log: one entry for each instant at which something was admitted, oldest first. Entries carry the running
-- total (it wraps; only differences count), so that sums and waits are found by bisection. `a` is the window.
--
-- A long log is not read whole. Entries below `kept` lie in Redis, the others (`ats`, `totals`) are new or changed; those
-- below `first` have left the window, and `base` is the running total before it.
local PAGE = 4096

makers[LOG] = function()
  local log = {}
  local HEAD, ENTRY = 23, 11

  function log.read(raw, name, is_whole)
    if #raw < HEAD then return nil end
    local _, a, _, first, n, base = unpack_from('>BI6I4I4I4I4', raw)
    if is_whole and #raw < HEAD + n * ENTRY then return nil end
    return {
      kind = LOG, a = a, b = 0, name = name, raw = raw, is_whole = is_whole, is_large = true,
      first = first, kept = n, n = n, base = base, ats = {}, totals = {},
    }
  end

  function log.fresh(limit)
    return {
      kind = LOG, a = limit.a, b = 0, name = limit.name, raw = '', is_whole = true, is_large = true,
      first = 0, kept = 0, n = 0, base = 0, ats = {}, totals = {},
    }
  end

  -- The stored entries from `from` up to, but not including, `to`.
  local function stored_entries(state, from, to)
    if from >= to then return '' end
    local start, stop = HEAD + from * ENTRY, HEAD + to * ENTRY
    if stop <= #state.raw then return sub(state.raw, start + 1, stop) end
    return call('GETRANGE', state.name, start, stop - 1)
  end

  local function entry(state, index)
    local changed_index = index - state.kept + 1
    if changed_index > 0 then return state.ats[changed_index], state.totals[changed_index] end
    local start = HEAD + index * ENTRY
    if start + ENTRY <= #state.raw then return unpack_from('>I7I4', state.raw, start + 1) end
    return unpack_from('>I7I4', stored_entries(state, index, index + 1))
  end

  -- The running total just before the entry at `index`.
  local function total_before(state, index)
    if index <= state.first then return state.base end
    local _, total = entry(state, index - 1)
    return total
  end

  -- The first entry after `instant`.
  local function first_after(state, instant)
    local low, high = state.first, state.n
    while low < high do
      local middle = floor((low + high) / 2)
      if entry(state, middle) > instant then high = middle else low = middle + 1 end
    end
    return low
  end

  -- What was spent since the running total was `base`.
  local function spent_since(state, base)
    return (total_before(state, state.n) - base) % WORD
  end

  -- The instant of the entry with which `amount` since the running total `base` is reached.
  local function instant_of(state, index, base, amount)
    local low, high = index, state.n - 1
    while low < high do
      local middle = floor((low + high) / 2)
      local _, total = entry(state, middle)
      if (total - base) % WORD >= amount then high = middle else low = middle + 1 end
    end
    return (entry(state, low))
  end

  function log.look(limit, state, cost)
    local window, most = limit.a, limit.capacity
    local held = first_after(state, now - window)
    local base = total_before(state, held)
    local spent = spent_since(state, base)
    local room = max(most - spent, 0)
    local outcome, remaining, wait = ALLOW, room - cost, 0
    if cost > most then
      outcome, remaining = NEVER, room
    elseif cost > room or spent > most then
      outcome, remaining = DENY, room
      wait = instant_of(state, held, base, spent + cost - most) - now + window
    end
    local reset = 0
    local last = now
    if state.n > state.first then last = entry(state, state.n - 1) end
    if outcome == ALLOW and cost > 0 then
      reset = max(last - now, 0) + window
    elseif spent > 0 then
      reset = last - now + window
    end
    return outcome, remaining, reset, wait
  end

  -- Makes the entries from `index` on changeable.
  local function unstore(state, index)
    if index >= state.kept then return end
    local ats, totals, raw = {}, {}, stored_entries(state, index, state.kept)
    local at = 1
    for number = 1, state.kept - index do
      ats[number], totals[number], at = unpack_from('>I7I4', raw, at)
    end
    for number = 1, #state.ats do
      ats[#ats + 1], totals[#totals + 1] = state.ats[number], state.totals[number]
    end
    state.kept, state.ats, state.totals = index, ats, totals
  end

  local function copy(state)
    local twin = {}
    for field, value in pairs(state) do twin[field] = value end
    twin.is_changed, twin.ats, twin.totals = nil, {}, {}
    for number = 1, #state.ats do
      twin.ats[number], twin.totals[number] = state.ats[number], state.totals[number]
    end
    return twin
  end

  -- The same log under another window.
  function log.rewindowed(limit, state)
    local twin = copy(state)
    twin.a = limit.a
    return twin
  end

  -- Entries that lie more than a window ahead count from now, and so does all that lies ahead.
  function log.moved(limit, state)
    if state.n == state.first or entry(state, state.n - 1) <= min(now + limit.a, LAST) then return nil end
    local twin = copy(state)
    local total = total_before(twin, twin.n)
    local ahead = first_after(twin, now - 1)
    unstore(twin, ahead)
    for number = #twin.ats, ahead - twin.kept + 1, -1 do twin.ats[number], twin.totals[number] = nil, nil end
    twin.ats[#twin.ats + 1], twin.totals[#twin.totals + 1] = now, total
    twin.n = ahead + 1
    return twin
  end

  local function drop_what_left(state)
    local held = first_after(state, now - state.a)
    if held == state.first then return end
    local base = total_before(state, held)
    if held > state.kept then
      local ats, totals = {}, {}
      for number = held - state.kept + 1, #state.ats do
        ats[#ats + 1], totals[#totals + 1] = state.ats[number], state.totals[number]
      end
      state.kept, state.ats, state.totals = held, ats, totals
    end
    state.first, state.base = held, base
  end

  function log.charge(limit, state, cost)
    drop_what_left(state)
    local total = total_before(state, state.n)
    cost = min(cost, max(2 * limit.capacity - spent_since(state, state.base), 0))
    if cost == 0 then return 0 end
    total = (total + cost) % WORD
    if state.n > state.first and entry(state, state.n - 1) >= now then
      unstore(state, state.n - 1)
      state.totals[#state.totals] = total
    else
      state.ats[#state.ats + 1], state.totals[#state.totals + 1] = now, total
      state.n = state.n + 1
    end
    return cost
  end

  function log.mark(_, state)
    local last = now
    if state.n > state.first then last = entry(state, state.n - 1) end
    return pack('>I7I4', last, 0)
  end

  -- Takes `cost` off the entry at `index`, or what there is of it.
  local function take_off(state, index, cost)
    local before = total_before(state, index)
    local _, total = entry(state, index)
    local given = min(cost, (total - before) % WORD)
    unstore(state, index)
    local number = index - state.kept + 1
    for later = number, #state.totals do state.totals[later] = (state.totals[later] - given) % WORD end
    if state.totals[number] == before then
      table.remove(state.ats, number)
      table.remove(state.totals, number)
      state.n = state.n - 1
    end
    return given
  end

  function log.refund(_, state, cost, mark)
    drop_what_left(state)
    local instant = unpack_from('>I7', mark)
    local index = first_after(state, instant - 1)
    if index == state.n or entry(state, index) ~= instant then return 0 end
    return take_off(state, index, cost)
  end

  -- From the youngest entry first, where it helps for longest.
  function log.credit(_, state, cost)
    drop_what_left(state)
    local left = cost
    while left > 0 and state.n > state.first do left = left - take_off(state, state.n - 1, left) end
    return cost - left
  end

  function log.spent(state)
    return spent_since(state, total_before(state, first_after(state, now - state.a)))
  end

  local function head(state, first, n)
    return pack('>BI6I4I4I4I4', LOG, state.a, 0, first, n, state.base)
  end

  function log.is_blank(state)
    return state.n == state.first or entry(state, state.n - 1) + state.a <= now
  end

  -- Returns nothing if the log is already written.
  function log.write(state, name)
    local counts_for = entry(state, state.n - 1) + state.a - now
    local new = {}
    for number = 1, #state.ats do new[number] = pack('>I7I4', state.ats[number], state.totals[number]) end
    new = table.concat(new)
    -- What has left is cut off when it is half of the log, so that each entry is moved once or twice in its life.
    if state.is_whole or state.first > state.n - state.first then
      local entries = stored_entries(state, state.first, state.kept) .. new
      return head(state, 0, state.n - state.first) .. entries, counts_for
    end
    if new ~= '' then call('SETRANGE', name, HEAD + state.kept * ENTRY, new) end
    call('SETRANGE', name, 0, head(state, state.first, state.n))
    call('PEXPIRE', name, life(counts_for))
  end

  return log
end
