-- Concurrency: leases in a sorted set, by the instant at which they end. A member is the id that holds the lease, its
-- slots and its length, and, where nobody holds it, that instant. The first member has a negative score, which tells the
-- slots of all leases together.
--
-- Leases are written at once, not at the end: what is read of them here is forgotten after each change.
makers[SLOTS] = function()
  local slots = { is_direct = true }
  local TOTAL = '\8'
  local NOW = format('%.0f', now)

  local function instant(number)
    return format('%.0f', number)
  end

  local function lease(member)
    return unpack_from('>I4I6', member, 17)
  end

  local function fresh_leases(name)
    return { kind = SLOTS, a = 0, b = 0, name = name, total = 0, ended = 0, ends = 0, length = 0 }
  end

  -- The leases of a key; false if there are none, nil if something else is there.
  function slots.load(name)
    local ended = try('ZRANGEBYSCORE', name, '-inf', NOW, 'WITHSCORES')
    if ended.err then return nil end
    if #ended == 0 then
      if call('EXISTS', name) == 1 then return nil end
      return false
    end
    if ended[1] ~= TOTAL then return nil end
    local state = fresh_leases(name)
    state.total = -1 - ended[2]
    for index = 3, #ended, 2 do state.ended = state.ended + lease(ended[index]) end
    local last = call('ZREVRANGE', name, 0, 0, 'WITHSCORES')
    if last[1] ~= TOTAL then
      state.ends = tonumber(last[2])
      local _, length = lease(last[1])
      state.length = length
    end
    return state
  end

  function slots.fresh(limit)
    return fresh_leases(limit.name)
  end

  -- How long until leases over `wanted` slots have ended.
  local function until_free(state, wanted)
    local freed = 0
    for _, held in ipairs(state.leases or {}) do
      if held.ends > now then freed = freed + held.slots end
      if freed >= wanted then return held.ends - now end
    end
    local from = 0
    while not state.leases do
      local some = call('ZRANGEBYSCORE', state.name, '(' .. NOW, '+inf', 'WITHSCORES', 'LIMIT', from, 64)
      for index = 1, #some, 2 do
        freed = freed + lease(some[index])
        if freed >= wanted then return some[index + 1] - now end
      end
      if #some == 0 then break end
      from = from + 64
    end
    return 1
  end

  function slots.look(limit, state, cost)
    local most, held = limit.capacity, state.total - state.ended
    local room, last = max(most - held, 0), max(state.ends - now, 0)
    if cost > most then return NEVER, room, last, 0 end
    if held + cost > most then return DENY, room, last, until_free(state, held + cost - most) end
    if cost > 0 then last = max(last, limit.ttl) end
    return ALLOW, room - cost, last, 0
  end

  local function is_earlier(one, other)
    if one.ends ~= other.ends then return one.ends < other.ends end
    return one.id < other.id
  end

  -- Leases that have longer to run than their length were given by a clock that has since stepped back: they run from now.
  function slots.moved(_, state)
    if state.leases or state.ends <= min(now + state.length, LAST) then return nil end
    local twin = fresh_leases(state.name)
    local members, leases = call('ZRANGEBYSCORE', state.name, 0, '+inf', 'WITHSCORES'), {}
    for index = 1, #members, 2 do
      local held, length = lease(members[index])
      local ends = min(tonumber(members[index + 1]), now + length, LAST)
      leases[#leases + 1] = { ends = ends, id = sub(members[index], 1, 16), slots = held, length = length }
    end
    table.sort(leases, is_earlier)
    twin.leases = {}
    for _, held in ipairs(leases) do
      local last = twin.leases[#twin.leases]
      if last and last.ends == held.ends and last.id == held.id then
        last.slots = last.slots + held.slots
      else
        twin.leases[#twin.leases + 1] = held
      end
      twin.total = twin.total + held.slots
      if held.ends <= now then twin.ended = twin.ended + held.slots end
      twin.ends, twin.length = held.ends, held.length
    end
    return twin
  end

  local function put(name, ends, id, held, length)
    local member = id .. pack('>I4I6', held, length)
    if id == ANONYMOUS then member = member .. pack('>I7', ends) end
    call('ZADD', name, ends, member)
  end

  local function put_total(state)
    states[state.name] = nil
    if state.total == 0 then
      call('DEL', state.name)
    else
      call('ZADD', state.name, -1 - state.total, TOTAL)
      call('PEXPIRE', state.name, life(max(state.ends - now, 1)))
    end
  end

  -- Replaces leases by their moved versions.
  function slots.move(state)
    call('DEL', state.name)
    for _, held in ipairs(state.leases) do put(state.name, held.ends, held.id, held.slots, held.length) end
    state.leases = nil
    put_total(state)
    return state
  end

  local function drop_ended(state)
    if state.ended == 0 then return end
    call('ZREMRANGEBYSCORE', state.name, 0, NOW)
    state.total, state.ended = state.total - state.ended, 0
  end

  -- Adds a lease, to one of the same id that ends at the same instant if there is one.
  local function add(state, ends, id, held, length)
    if state.ends >= ends then
      for _, member in ipairs(call('ZRANGEBYSCORE', state.name, instant(ends), instant(ends))) do
        if sub(member, 1, 16) == id then
          local before
          before, length = lease(member)
          call('ZREM', state.name, member)
          state.total, held = state.total - before, held + before
        end
      end
    end
    put(state.name, ends, id, held, length)
    state.total = state.total + held
    if ends >= state.ends then state.ends, state.length = ends, length end
  end

  function slots.charge(limit, state, cost, id)
    local name = state.name
    if states[name] and states[name].kind ~= SLOTS then
      call('DEL', name)
      stored[name] = nil
    end
    drop_ended(state)
    state.mark = min(now + limit.ttl, LAST)
    cost = min(cost, max(2 * limit.capacity - state.total, 0))
    if cost > 0 then add(state, state.mark, id, cost, limit.ttl) end
    put_total(state)
  end

  function slots.mark(_, state)
    return pack('>I7I4', state.mark, 0)
  end

  -- The lease of an id: where its receipt saw it, or wherever else it is if it was renewed or moved since.
  local function find(held, state, id)
    local ends = instant(held.mark)
    for _, member in ipairs(call('ZRANGEBYSCORE', state.name, ends, ends)) do
      if sub(member, 1, 16) == id then return member end
    end
    local likely = id .. pack('>I4I6', held.cost, held.ttl)
    if call('ZSCORE', state.name, likely) then return likely end
    for _, member in ipairs(call('ZRANGEBYSCORE', state.name, 0, '+inf')) do
      if sub(member, 1, 16) == id then return member end
    end
  end

  -- Ends the lease of an id. Returns the number of its slots.
  local function remove(held, state, id)
    drop_ended(state)
    local member = state.total > 0 and find(held, state, id)
    if not member then return 0 end
    call('ZREM', state.name, member)
    local freed = lease(member)
    state.total = state.total - freed
    return freed
  end

  function slots.release(held, state, id)
    local freed = remove(held, state, id)
    put_total(state)
    return freed
  end

  function slots.renew(held, state, id)
    local freed = remove(held, state, id)
    if freed > 0 then add(state, min(now + held.ttl, LAST), id, freed, held.ttl) end
    put_total(state)
    return freed > 0
  end

  -- Held slots belong to their holders.
  function slots.credit()
    return 0
  end

  return slots
end
