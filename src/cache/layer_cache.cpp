#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>

#include "cache/layer_state.h"
#include "cache/slabs.h"
#include "codec/scalar.h"
#include "ops/kv_rows.h"

namespace tersor::cache {
namespace {

using State = LayerCache::State;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

bool is_full(const codec::Spec& spec) { return spec.family == codec::Family::full; }

std::shared_ptr<const ops::KvFormat> sized(ops::KvFormat format, const LayerShape& shape, bool sanitise) {
  format.batch = shape.batch, format.heads = shape.kv_heads, format.sanitise = sanitise;
  return std::make_shared<const ops::KvFormat>(std::move(format));
}

// Whether kernels multiply the codes, or what tables say of them, as integers.
bool has_integers(const codec::Spec& spec) {
  using codec::Family;
  constexpr int kTableBits = 8;
  if (spec.family == Family::vecinfer) return spec.bits <= kTableBits;
  return spec.family != Family::full && spec.family != Family::mxfp8;
}

// The calibrated mean of every head's keys, [B, H, D].
mx::array calibrated_mean(const LayerCalibration& calibration, const LayerShape& shape) {
  std::vector<float> means;
  for (const codec::Calibration& head : calibration.keys) means.insert(means.end(), head.mean.begin(), head.mean.end());
  if (means.size() != static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.key_dim))
    throw Error("centre=calibrated needs a calibration of this model's keys; make one with tersor calibrate");
  const mx::array one(means.data(), {1, shape.kv_heads, shape.key_dim}, mx::float32);
  mx::array all = mx::contiguous(mx::broadcast_to(one, {shape.batch, shape.kv_heads, shape.key_dim}));
  all.eval();
  return all;
}

// The mean of the first new keys, at most `tokens` of them, as the kernels see them: [B, H, D].
mx::array first_mean(const mx::array& k, const ops::RowShape& shape, int64_t tokens) {
  const auto i = [](int64_t n) { return static_cast<int>(n); };
  const mx::Shape major = shape.tokens_major ? mx::Shape{i(shape.batch), i(shape.tokens), i(shape.heads), i(shape.dim)} : k.shape();
  const int axis = shape.tokens_major ? 1 : 2;
  mx::Shape stop = major;
  stop[axis] = i(std::min(tokens, shape.tokens));
  const mx::array first = mx::astype(mx::slice(mx::reshape(k, major), mx::Shape(4, 0), stop), mx::float32);
  const mx::array limit(codec::kInputMax);
  const mx::array clean = mx::minimum(mx::maximum(mx::where(mx::isnan(first), mx::array(0.0f), first), mx::negative(limit)), limit);
  mx::array mean = mx::contiguous(mx::mean(clean, axis));
  mean.eval();
  return mean;
}

// Codecs of all KV heads: one where there is no calibration, which may differ between heads.
ops::KvBasis::Codecs codecs_of(const codec::Spec& spec, codec::Role role, int dim, const LayerShape& shape, Dtype full_dtype,
                               std::span<const codec::Calibration> calibrations) {
  if (!codec::needs_calibration(spec) || calibrations.empty()) return {codec::Codec::make(spec, role, dim, full_dtype)};
  if (calibrations.size() != static_cast<size_t>(shape.kv_heads))
    throw Error("the calibration has " + std::to_string(calibrations.size()) + " KV heads, the model has " +
                std::to_string(shape.kv_heads) + "; calibrate for this model");
  ops::KvBasis::Codecs codecs;
  for (const codec::Calibration& calibration : calibrations)
    codecs.push_back(codec::Codec::make(spec, role, dim, full_dtype, &calibration));
  return codecs;
}

// Room for `tokens` tokens of a slab that will never need more than `limit`: a quarter to spare, however long the window may get.
int64_t room(int64_t tokens, int64_t limit) { return std::max(tokens, std::min(limit, std::max(kLeastRoom, tokens + tokens / 4))); }

// The recent window begins on a boundary of its blocks.
int64_t recent_step(const State& s) { return s.recent_format->granularity(); }
int64_t recent_limit(const State& s) { return s.window + kRewindMargin + recent_step(s); }

void grow_sinks(State& s, int64_t tokens) {
  const int64_t capacity = std::min(s.sinks, room(tokens, s.sinks));
  if (!s.sink_slab)
    s.sink_slab = ops::KvSlab::make(s.sink_format, capacity, 0);
  else if (tokens > s.sink_slab->capacity)
    s.sink_slab = moved(*s.sink_slab, 0, capacity);
}

// The block boundary from which the next row, at position `position`, and rows after short rewinds need full precision.
int64_t recent_first(const State& s, int64_t position) {
  const int64_t needed = std::max<int64_t>(0, position - s.window + 1 - kRewindMargin);
  return std::max(s.recent->first, needed / recent_step(s) * recent_step(s));
}

void make_room(State& s, int64_t tokens) {
  const int64_t capacity = s.capacity(), needed = s.tokens + tokens;
  if (needed <= capacity) return;
  const bool fragments = s.body_format->fragments();
  if (fragments && s.body.size() >= kMostSlabs) s.body = {joined(s.body)};
  const int64_t step = std::clamp(capacity / 4, kLeastStep, fragments ? kMostStepOnGpu : kMostStep);
  const int64_t first = s.capacity();
  s.body.push_back(ops::KvSlab::make(s.body_format, std::max(needed - capacity, capacity == 0 ? kLeastStep : step), first));
}

// The parts of tokens [begin, end), which come in arrays of their own, that go to the slabs of the body.
void body_writes(State& s, int64_t begin, int64_t end, std::optional<codec::Role> only, std::vector<ops::KvWrite>& writes) {
  for (ops::KvSlab& slab : s.body) {
    const int64_t low = std::max(begin, slab.first), high = std::min(end, slab.first + slab.capacity);
    if (low < high) writes.push_back({&slab, low - begin, high - low, low - slab.first, only});
  }
}

void full_writes(State& s, int64_t count, std::vector<ops::KvWrite>& writes) {
  if (s.tokens < s.sinks) {
    const int64_t end = std::min(s.tokens + count, s.sinks);
    grow_sinks(s, end);
    writes.push_back({&*s.sink_slab, 0, end - s.tokens, s.tokens});
  }
  if (s.window == 0) return;
  if (!s.recent) {  // from the next boundary on; what a long rewind has left before it is in the body
    const int64_t first = round_up(s.tokens, recent_step(s));
    if (first >= s.tokens + count) return;
    s.recent = ops::KvSlab::make(s.recent_format, room(s.tokens + count - first, recent_limit(s)), first);
    writes.push_back({&*s.recent, first - s.tokens, s.tokens + count - first, 0});
    return;
  }
  if (s.recent->count + count > s.recent->capacity) {
    const int64_t first = recent_first(s, s.tokens), capacity = room(s.tokens - first + count, recent_limit(s));
    // Every few tokens of a decode: not worth the nodes of MLX that a copy is made of.
    if (capacity <= s.recent->capacity && s.append_choice.fast && mx::default_device() == mx::Device::cpu)
      ops::kv_slide(*s.recent, first - s.recent->first, s.ticket);
    else
      s.recent = moved(*s.recent, first, capacity);
  }
  writes.push_back({&*s.recent, 0, count, s.tokens - s.recent->first});
}

// Room for new tokens, and where they go.
std::vector<ops::KvWrite> writes_of(State& s, int64_t tokens) {
  make_room(s, tokens);
  std::vector<ops::KvWrite> writes;
  body_writes(s, s.tokens, s.tokens + tokens, s.key_group() > 1 ? std::optional(codec::Role::values) : std::nullopt, writes);
  full_writes(s, tokens, writes);
  return writes;
}

void note_written(State& s, const std::vector<ops::KvWrite>& writes, int64_t tokens) {
  s.ticket.reset();
  for (const ops::KvWrite& write : writes) write.slab->count = write.at + write.count;
  s.tokens += tokens;
}

// Keys of the groups that have been filled since the cache had `before` tokens. They are encoded from the window's numbers, so that it
// does not matter in which calls they came.
void encode_groups(State& s, int64_t before) {
  const int64_t begin = before / s.key_group() * s.key_group(), end = s.unfinished_group();
  if (s.key_group() == 1 || begin == end) return;
  const mx::array keys = ops::kv_decode(*s.recent, codec::Role::keys, begin - s.recent->first, end - s.recent->first);
  std::vector<ops::KvWrite> writes;
  body_writes(s, begin, end, codec::Role::keys, writes);
  ops::kv_append(writes, keys, keys, {}, s.append_choice);
  s.ticket = keys;  // of the window's numbers, which must not change before they have been read
}

// After a long rewind the keys of the last group are nowhere but in the codes of the group they belonged to: these become the window.
void reopen_group(State& s) {
  const int64_t begin = s.unfinished_group(), count = s.tokens - begin;
  if (count == 0 || (s.recent && s.recent->first <= begin)) return;
  const auto slab = std::find_if(s.body.begin(), s.body.end(), [&](const ops::KvSlab& x) { return begin < x.first + x.capacity; });
  const auto decoded = [&](codec::Role role) { return ops::kv_decode(*slab, role, begin - slab->first, s.tokens - slab->first); };
  s.recent = ops::KvSlab::make(s.recent_format, room(count, recent_limit(s)), begin);
  const ops::KvWrite write{&*s.recent, 0, count, 0};
  ops::kv_append({&write, 1}, decoded(codec::Role::keys), decoded(codec::Role::values), s.ticket, s.append_choice);
  s.recent->count = count;
  s.ticket = s.recent->data;  // what overwrites the codes waits for it
}

}  // namespace

LayerCache::LayerCache() = default;
LayerCache::~LayerCache() = default;
LayerCache::LayerCache(LayerCache&&) noexcept = default;
LayerCache& LayerCache::operator=(LayerCache&&) noexcept = default;

LayerCache::LayerCache(const codec::Spec& keys, const codec::Spec& values, int window, int sinks, LayerShape shape, Dtype full_dtype,
                       ops::Policy policy, ops::Precision precision, const LayerCalibration& calibration)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.keys = keys, s.values = values, s.shape = shape, s.full_dtype = full_dtype;
  const bool all_full = is_full(keys) && is_full(values);
  s.window = all_full ? 0 : window;
  s.sinks = all_full ? 0 : sinks;
  const std::string variant = keys == values ? keys.str() : keys.str() + "/" + values.str();
  s.append_choice = ops::choose("kv_append", variant, ops::mlx_dtype(full_dtype), shape.key_dim, policy, shape.value_dim);
  const bool integers =
      precision == ops::Precision::int16 && (has_integers(keys) || has_integers(values)) && mx::default_device() == mx::Device::cpu;
  s.attend_choice =
      ops::choose("kv_attend", variant + (integers ? ",int16" : ""), ops::mlx_dtype(full_dtype), shape.key_dim, policy, shape.value_dim);
  const bool fragments = mx::default_device() == mx::Device::gpu && s.append_choice.fast && s.attend_choice.fast;
  const auto arrangement = fragments ? codec::Arrangement::fragments : codec::Arrangement::lanes;
  const auto basis =
      std::make_shared<const ops::KvBasis>(codecs_of(keys, codec::Role::keys, shape.key_dim, shape, full_dtype, calibration.keys),
                                           codecs_of(values, codec::Role::values, shape.value_dim, shape, full_dtype, calibration.values));
  s.body_format = sized(ops::KvFormat(basis, arrangement), shape, !all_full);
  if (s.key_group() > 1) s.window = std::max(s.window, s.key_group());
  codec::Spec full;
  full.dtype = full_dtype;
  const auto full_keys = codec::Codec::make(full, codec::Role::keys, shape.key_dim),
             full_values = codec::Codec::make(full, codec::Role::values, shape.value_dim);
  s.sink_format = sized(ops::KvFormat(basis, full_keys, full_values, kSinkBlockTokens, arrangement), shape, true);
  s.recent_format = sized(ops::KvFormat(basis, full_keys, full_values, kRecentBlockTokens, arrangement), shape, true);
  if (keys.centre == codec::Spec::kCentreCalibrated) s.centre = calibrated_mean(calibration, shape);
  if (needs_calibration(keys, codec::Role::keys) || needs_calibration(values, codec::Role::values))
    s.calibration = digest_of({calibration});
}

void LayerCache::append(const mx::array& k, const mx::array& v) {
  State& s = *state_;
  const auto shape = ops::RowShape::of(k, s.shape.kv_heads, s.shape.key_dim, "LayerCache::append", "k");
  if (shape.tokens == 0) return;
  if (s.keys.centre > 0 && s.tokens == 0) s.centre = first_mean(k, shape, s.keys.centre);
  const auto writes = writes_of(s, shape.tokens);
  ops::kv_append(writes, k, v, s.ticket, s.append_choice, s.centre);
  note_written(s, writes, shape.tokens);
  encode_groups(s, s.tokens - shape.tokens);
}

mx::array LayerCache::append_turned(const ops::QueryKeyValue& rows, const ops::RopeParams& rope, const ops::Choice& rope_choice) {
  State& s = *state_;
  const auto shape = ops::RowShape::of(rows.k, s.shape.kv_heads, s.shape.key_dim, "LayerCache::append_turned", "k");
  if (shape.tokens == 0) return rows.q;
  const bool first = s.keys.centre > 0 && s.tokens == 0;  // their mean is that of the turned keys
  if (first || !s.append_choice.fast || mx::default_device() != mx::Device::gpu) {
    const auto turned = ops::rope(rows.q, rows.k, rope, s.tokens, rope_choice);
    append(turned.k, rows.v);
    return turned.q;
  }
  const auto writes = writes_of(s, shape.tokens);
  mx::array q = ops::kv_append_turned(writes, {rows.q, rope, s.tokens}, rows.k, rows.v, s.ticket, s.centre);
  note_written(s, writes, shape.tokens);
  return q;
}

mx::array LayerCache::attend(const mx::array& q, const AttendOptions& options) {
  State& s = *state_;
  const auto shape = ops::RowShape::of(q, 0, s.shape.key_dim, "LayerCache::attend", "q");
  if (shape.tokens > s.tokens)
    throw std::invalid_argument("[LayerCache::attend] " + std::to_string(shape.tokens) + " query rows but only " +
                                std::to_string(s.tokens) + " cached tokens; append keys and values first");
  std::vector<ops::KvRead> reads;
  // A row at p reads tokens in (p - window, p] from the recent slab, as far as that reaches back, and earlier ones from the body.
  if (s.sink_slab) reads.push_back({&*s.sink_slab, {}, {}, {}, {}});
  for (const ops::KvSlab& slab : s.body) {
    if (slab.count == 0) continue;
    ops::KvRead read{&slab, {}, {}, {}, {}, s.tokens == slab.first + slab.count};
    if (s.sinks) read.lo_abs = s.sinks;
    if (s.recent) read.hi_abs = s.recent->first, read.hi_rel = 1 - s.window;
    reads.push_back(read);
  }
  if (s.recent) reads.push_back({&*s.recent, std::max(s.recent->first, s.sinks), 1 - s.window, {}, {}, true});
  auto [out, ticket] = ops::kv_attend(q, reads, options, s.tokens - shape.tokens, s.attend_choice, s.ticket);
  s.ticket = std::move(ticket);
  // A long chunk has left a long window behind.
  if (s.recent && s.recent->capacity > round_up(recent_limit(s), recent_step(s))) {
    const int64_t first = recent_first(s, s.tokens);
    s.recent = moved(*s.recent, first, room(s.tokens - first, recent_limit(s)));
  }
  return out;
}

bool LayerCache::advances() const {
  const State& s = *state_;
  if (s.body.empty() || s.tokens == 0 || s.tokens <= s.sinks || (s.window > 0 && !s.recent)) return false;
  if (s.key_group() > 1 && (s.tokens + 1) % s.key_group() == 0) return false;
  const auto last = std::find_if(s.body.rbegin(), s.body.rend(), [](const ops::KvSlab& slab) { return slab.count > 0; });
  return last != s.body.rend() && last->count < last->capacity && (!s.recent || s.recent->count < s.recent->capacity);
}

void LayerCache::advance() {
  State& s = *state_;
  std::find_if(s.body.rbegin(), s.body.rend(), [](const ops::KvSlab& slab) { return slab.count > 0; })->count += 1;
  if (s.recent) s.recent->count += 1;
  s.tokens += 1;
}

int64_t LayerCache::tokens() const { return state_->tokens; }
const LayerShape& LayerCache::shape() const { return state_->shape; }

void LayerCache::reserve(int64_t tokens) {
  State& s = *state_;
  if (tokens > s.capacity()) s.body.push_back(ops::KvSlab::make(s.body_format, tokens - s.capacity(), s.capacity()));
}

int64_t LayerCache::trimmable() const {
  const State& s = *state_;
  if (!s.recent || s.recent->first == 0) return s.tokens;
  return std::max<int64_t>(0, s.tokens - s.window + 1 - s.recent->first);
}

int64_t LayerCache::trim(int64_t n) {
  if (n <= 0 || n > state_->tokens || (n > trimmable() && n != state_->tokens)) return 0;
  rewind(n);
  return n;
}

void LayerCache::rewind(int64_t n) {
  State& s = *state_;
  if (n <= 0) return;
  s.tokens -= std::min(n, s.tokens);
  while (s.body.size() > 1 && s.body.back().first >= s.tokens) s.body.pop_back();
  for (ops::KvSlab& slab : s.body) slab.count = std::clamp<int64_t>(s.tokens - slab.first, 0, slab.count);
  if (s.sink_slab) s.sink_slab->count = std::min(s.sink_slab->count, s.tokens);
  if (s.recent && s.tokens <= s.recent->first) s.recent.reset();
  if (s.recent) s.recent->count = s.tokens - s.recent->first;
  if (s.tokens == 0) s.sink_slab.reset();
  if (s.tokens == 0 && s.keys.centre > 0) s.centre.reset();  // the next first tokens have a mean of their own
  if (s.key_group() > 1) reopen_group(s);
}

LayerCache LayerCache::copy() const {
  LayerCache other;
  other.state_ = std::make_unique<State>(*state_);
  State& s = *other.state_;
  std::vector<mx::array> fresh;
  const auto duplicate = [&fresh](ops::KvSlab& slab) { fresh.push_back(slab.data = own_memory(slab.data)); };
  for (ops::KvSlab& slab : s.body) duplicate(slab);
  if (s.sink_slab) duplicate(*s.sink_slab);
  if (s.recent) duplicate(*s.recent);
  mx::eval(fresh);
  s.ticket.reset();
  return other;
}

uint64_t LayerCache::bytes() const {
  uint64_t sum = 0;
  for (const mx::array& array : arrays()) sum += array.nbytes();
  return sum;
}

std::vector<mx::array> LayerCache::arrays() const {
  std::vector<mx::array> all;
  for (const ops::KvSlab& slab : state_->body) all.push_back(slab.data);
  if (state_->sink_slab) all.push_back(state_->sink_slab->data);
  if (state_->recent) all.push_back(state_->recent->data);
  if (state_->centre) all.push_back(*state_->centre);
  return all;
}

std::vector<ops::Choice> LayerCache::choices() const { return {state_->append_choice, state_->attend_choice}; }

}  // namespace tersor::cache
