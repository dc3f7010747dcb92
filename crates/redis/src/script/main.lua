local KEYS, ARGV, call = KEYS, ARGV, redis.call
local pack, unpack_from, sub = struct.pack, struct.unpack, string.sub
local EXACT, MANY, FEW = 9007199254740992, 4000, 16

local now, slack = ARGV[1], 86400000
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
  -- One millisecond for the fraction that Redis does not count, one for a reading of its clock just before this one.
  slack = 2
else
  -- Redis' clock says nothing about somebody else's: what their clock needs is kept for a day longer.
  now = tonumber(now)
end

-- Parsed bodies. Most requests of a call share a few bodies, and each of those is parsed once.
local plans, are_whole = {}, true
for number = 2, #ARGV do
  local body = ARGV[number]
  if not plans[body] then
    local operation, keys, whole, count = unpack_from('>BI2I2I2', body)
    local plan = { body = body, operation = operation, keys = keys, whole = whole, count = count }
    -- A single final charge to a bucket that can hold it: its line's first bytes, and its numbers in drops.
    if operation == 1 and count == 1 and #body == 43 then
      local kind, _, cost, _, _, a, b, capacity = unpack_from('>BI2I7I2I7I6I4I7', body, 8)
      if kind > 15 then kind = kind - 16 end
      if kind <= 3 and cost <= capacity then
        plan.line, plan.a, plan.b = pack('>BI6I4', kind, a, b), a, b
        plan.asked, plan.full, plan.is_shaper = cost * a, capacity * a, kind == 3
      end
    -- Several of them, each to a key of its own: seven numbers for each.
    elseif operation == 1 and count > 1 and count <= FEW and keys == count and whole == count
      and #body == 7 + 36 * count then
      local lines, at = {}, 8
      for first = 1, 7 * count, 7 do
        local kind, key, cost, _, _, a, b, capacity
        kind, key, cost, _, _, a, b, capacity, at = unpack_from('>BI2I7I2I7I6I4I7', body, at)
        if kind > 15 then kind = kind - 16 end
        if kind > 3 or cost > capacity then
          lines = nil
          break
        end
        lines[first], lines[first + 1], lines[first + 2], lines[first + 3] = key, pack('>BI6I4', kind, a, b), a, b
        lines[first + 4], lines[first + 5], lines[first + 6] = cost * a, capacity * a, kind == 3
      end
      plan.lines, plan.format = lines, lines and '>B' .. string.rep('BI7I7I7', count)
    end
    plans[body], are_whole = plan, are_whole and whole == keys
  end
end

-- Reads all states that are read whole.
local raws = {}
if are_whole and #KEYS <= MANY then
  if #KEYS > 0 then raws = call('MGET', unpack(KEYS)) end
else
  local names, wanted, before = {}, {}, 0
  for number = 2, #ARGV do
    local plan = plans[ARGV[number]]
    for place = before + 1, before + plan.whole do
      names[#names + 1], wanted[#wanted + 1] = KEYS[place], place
    end
    before = before + plan.keys
  end
  for from = 1, #names, MANY do
    local some = call('MGET', unpack(names, from, math.min(from + MANY - 1, #names)))
    for index = 1, #some do raws[wanted[from + index - 1]] = some[index] end
  end
end

-- MGET returns nil for keys that are not strings. If there may be any, the library reads them one by one.
local missing
for place = 1, #KEYS do
  if raws[place] == false then
    missing = missing or {}
    missing[#missing + 1] = KEYS[place]
  end
end
for from = 1, missing and #missing or 0, MANY do
  if call('EXISTS', unpack(missing, from, math.min(from + MANY - 1, #missing))) > 0 then
    for place = 1, #KEYS do raws[place] = raws[place] or nil end
    break
  end
end

-- Decides the requests in turn. The operations on lines are those of line.lua and bucket.lua, inlined.
local replies, places, lives, before = {}, {}, {}, 0
local operate, write
local answers, drafts
for number = 2, #ARGV do
  local plan, reply = plans[ARGV[number]], nil
  local line, lines = plan.line, plan.lines
  if line then
    local place = before + 1
    local name = KEYS[place]
    if places[name] then place = places[name] else places[name] = place end
    local raw, a, b, full = raws[place], plan.a, plan.b, plan.full
    local spent, ends, spare = 0, 0, -1
    if raw then
      if #raw == 24 and sub(raw, 1, 11) == line then
        local part
        ends, part, spare = unpack_from('>I7I4I2', raw, 12)
        if ends >= now then spent = (ends - now) * b + part end
        -- More than a key may owe, or than can be counted.
        if spent > 2 * full or ends >= EXACT then raw = nil end
      else
        raw = nil
      end
    end
    local asked, room = plan.asked, full - spent
    if raw == nil then
      reply = nil
    elseif asked > room then
      local part, short = spent % b, asked - room
      local reset = (spent - part) / b
      if part > 0 then reset = reset + 1 end
      part = short % b
      local wait = (short - part) / b
      if part > 0 then wait = wait + 1 end
      if room < 0 then room = 0 end
      reply = pack('>BBI7I7I7', 0, 1, (room - room % a) / a, reset, wait)
    else
      local after, delay = spent + asked, 0
      local part = after % b
      local ahead = (after - part) / b
      local reset, whole = ahead, now + ahead
      if part > 0 then reset = reset + 1 end
      if plan.is_shaper then delay = math.ceil(spent / b) end
      if whole < EXACT then
        if asked > 0 then
          spare = spare - (whole - ends) / 1024
          if spare >= 0 then
            lives[place] = lives[place] or 0
          else
            spare, lives[place] = 3906, reset + 3906 * 1024
          end
          raws[place] = pack('>c0I7I4I2', line, whole, part, spare)
        end
        local left = room - asked
        reply = pack('>BBI7I7I7', 0, 0, (left - left % a) / a, reset, delay)
      end
    end
  end
  -- Several charges: first all are looked at, then all are made or none.
  if lines then
    if not answers then answers, drafts = { 0 }, {} end
    local are_allowed, answer, draft = true, 2, 1
    for first = 1, 7 * plan.count, 7 do
      local place = before + lines[first]
      local name = KEYS[place]
      if places[name] then place = places[name] else places[name] = place end
      local raw, a, b, asked, full = raws[place], lines[first + 2], lines[first + 3], lines[first + 4], lines[first + 5]
      local spent, ends, spare = 0, 0, -1
      if raw then
        if #raw == 24 and sub(raw, 1, 11) == lines[first + 1] then
          local part
          ends, part, spare = unpack_from('>I7I4I2', raw, 12)
          if ends >= now then spent = (ends - now) * b + part end
          if spent > 2 * full or ends >= EXACT then raw = nil end
        else
          raw = nil
        end
      end
      local after = spent + asked
      local part = after % b
      local ahead = (after - part) / b
      if raw == nil or now + ahead >= EXACT then
        lines = nil
        break
      end
      local left, delay = full - after, 0
      if left < 0 then are_allowed = false end
      if lines[first + 6] then delay = math.ceil(spent / b) end
      drafts[draft], drafts[draft + 1], drafts[draft + 2] = place, spent, ahead
      drafts[draft + 3], drafts[draft + 4], drafts[draft + 5] = part, ends, spare
      answers[answer], answers[answer + 1], answers[answer + 3] = 0, (left - left % a) / a, delay
      answers[answer + 2] = part > 0 and ahead + 1 or ahead
      answer, draft = answer + 4, draft + 6
    end
    if lines and are_allowed then
      draft = 1
      for first = 1, 7 * plan.count, 7 do
        if lines[first + 4] > 0 then
          local place, ahead, part, spare = drafts[draft], drafts[draft + 2], drafts[draft + 3], drafts[draft + 5]
          spare = spare - (now + ahead - drafts[draft + 4]) / 1024
          if spare >= 0 then
            lives[place] = lives[place] or 0
          else
            spare, lives[place] = 3906, (part > 0 and ahead + 1 or ahead) + 3906 * 1024
          end
          raws[place] = pack('>c0I7I4I2', lines[first + 1], now + ahead, part, spare)
        end
        draft = draft + 6
      end
    elseif lines then
      answer, draft = 2, 1
      for first = 1, 7 * plan.count, 7 do
        local a, b, asked, spent = lines[first + 2], lines[first + 3], lines[first + 4], drafts[draft + 1]
        local room, part = lines[first + 5] - spent, spent % b
        local reset = (spent - part) / b
        if part > 0 then reset = reset + 1 end
        local outcome, wait = 0, lines[first + 6] and reset or 0
        if asked > room then
          local short = asked - room
          part = short % b
          outcome, wait = 1, (short - part) / b
          if part > 0 then wait = wait + 1 end
          if room < 0 then room = 0 end
        end
        answers[answer], answers[answer + 1], answers[answer + 2] = outcome, (room - room % a) / a, reset
        answers[answer + 3] = wait
        answer, draft = answer + 4, draft + 6
      end
    end
    if lines then reply = pack(plan.format, unpack(answers, 1, 4 * plan.count + 1)) end
  end
  if not reply then
    if not operate then operate, write = library(KEYS, now, slack, raws, places, lives) end
    reply = operate(plan, before)
  end
  replies[number - 1], before = reply, before + plan.keys
end

for place = 1, #KEYS do
  local life = lives[place]
  if life == 0 then
    call('SETRANGE', KEYS[place], '0', raws[place])
  elseif life then
    call('SET', KEYS[place], raws[place], 'PX', math.ceil(life / 1000) + slack)
  end
end
if write then write() end
return replies
