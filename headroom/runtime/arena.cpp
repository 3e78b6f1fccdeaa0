#include "headroom/runtime/arena.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "headroom/plan/place/solver.h"

#if defined(__SANITIZE_ADDRESS__)
#define HEADROOM_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADROOM_POISONS 1
#endif
#endif
#if defined(HEADROOM_POISONS)
#include <sanitizer/asan_interface.h>
#endif

namespace headroom::internal {
namespace {

thread_local ArenaScope* innermost_scope = nullptr;

/// How many recorded requests a request of another size may skip: those that this step does not make.
constexpr size_t kLookahead = 8;

/// Returns the alignment of the native allocator of a device.
int64_t native_alignment(c10::Device device) { return device.is_cpu() ? 64 : 512; }

/// Has the address sanitizer, if there is one, report accesses to memory of the host from now on, or no longer.
void set_poisoned([[maybe_unused]] const void* pointer, [[maybe_unused]] int64_t bytes,
                  [[maybe_unused]] bool is_poisoned) {
#if defined(HEADROOM_POISONS)
  if (is_poisoned)
    __asan_poison_memory_region(pointer, static_cast<size_t>(bytes));
  else
    __asan_unpoison_memory_region(pointer, static_cast<size_t>(bytes));
#endif
}

}  // namespace

/// One block of the native allocator, and which parts of it are in use. What is handed out keeps the block.
class ArenaBlock final : public MemoryOwner, public std::enable_shared_from_this<ArenaBlock> {
 public:
  ArenaBlock(c10::Device device, int64_t bytes, bool fills)
      : memory_(allocate(device, bytes)),
        begin_(static_cast<char*>(memory_.get())),
        bytes_(bytes),
        is_on_host_(device.is_cpu()),
        fills_(fills) {
    take_back(begin_, bytes_);
  }

  ~ArenaBlock() override {
    if (is_on_host_) set_poisoned(begin_, bytes_, false);
    const NoArena none;
    memory_.clear();
  }

  /// Returns the memory at an offset, or null if a part of it is in use.
  void* hand_out(int64_t offset, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto next = in_use_.lower_bound(offset);
    if (next != in_use_.end() && next->first < offset + bytes) return nullptr;
    if (next != in_use_.begin() && std::prev(next)->second > offset) return nullptr;
    in_use_.emplace_hint(next, offset, offset + bytes);
    if (is_on_host_) set_poisoned(begin_ + offset, bytes, false);
    return begin_ + offset;
  }

  void release(void* pointer) override {
    const std::lock_guard lock(mutex_);
    const auto part = in_use_.find(static_cast<char*>(pointer) - begin_);
    take_back(pointer, part->second - part->first);
    in_use_.erase(part);
  }

  bool is_in_use() const {
    const std::lock_guard lock(mutex_);
    return !in_use_.empty();
  }

 private:
  static constexpr int kFill = 0xff;

  static c10::DataPtr allocate(c10::Device device, int64_t bytes) {
    const NoArena none;
    return c10::GetAllocator(device.type())->allocate(static_cast<size_t>(bytes));
  }

  void take_back(void* pointer, int64_t bytes) const {
    if (!is_on_host_ || bytes == 0) return;
    if (fills_) std::memset(pointer, kFill, static_cast<size_t>(bytes));
    set_poisoned(pointer, bytes, true);
  }

  c10::DataPtr memory_;
  char* const begin_;
  const int64_t bytes_;
  const bool is_on_host_;
  const bool fills_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> in_use_;  ///< Ends by offsets.
};

/// What happens in a step that records: requests, and frees of them and of other native memory, in order.
class Recording final : public MemoryOwner, public std::enable_shared_from_this<Recording> {
 public:
  void add(const void* pointer, int64_t bytes, Half half) {
    const std::lock_guard lock(mutex_);
    live_[pointer] = requests_.size();
    requests_.push_back({bytes, half, static_cast<int64_t>(events_.size()), kNever});
    events_.push_back({static_cast<int64_t>(requests_.size()) - 1, bytes, half});
  }

  /// Notes that memory from outside of the step was freed in one of its halves.
  void add_free(int64_t bytes, Half half) {
    const std::lock_guard lock(mutex_);
    events_.push_back({kOutside, -bytes, half});
  }

  void release(void* pointer) override {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(pointer);
    if (found == live_.end()) return;
    Request& request = requests_[found->second];
    if (half_) {
      request.freed_at = static_cast<int64_t>(events_.size());
      events_.push_back({static_cast<int64_t>(found->second), -request.bytes, *half_});
    }
    live_.erase(found);
  }

  /// Sets which half runs; none: frees are outside of the halves.
  void set_half(std::optional<Half> half) {
    const std::lock_guard lock(mutex_);
    half_ = half;
  }

  void leave_native(const void* pointer) {
    const std::lock_guard lock(mutex_);
    if (const auto found = live_.find(pointer); found != live_.end()) requests_[found->second].is_left_native = true;
  }

  /// Ends the recording, and returns the layout for it.
  std::shared_ptr<const ArenaLayout> make_layout(int64_t alignment) {
    const std::lock_guard lock(mutex_);
    live_.clear();
    auto layout = std::make_shared<ArenaLayout>();
    PlaceProblem problem;
    problem.alignment = alignment;
    for (const Request& request : requests_)
      if (request.is_placed()) problem.blocks.push_back({request.bytes, request.made_at, request.freed_at - 1});
    const PlaceSolution solution = solve_placement(problem);
    auto offset = solution.offsets.begin();
    for (const Request& request : requests_)
      layout->requests[static_cast<size_t>(request.half)].push_back(
          {request.bytes, request.is_placed() ? *offset++ : ArenaLayout::kNative});
    layout->memory = memory_beside();
    layout->memory.block_bytes = solution.arena_bytes;
    requests_ = {};
    events_ = {};
    return layout;
  }

 private:
  static constexpr int64_t kNever = -1;
  static constexpr int64_t kOutside = -1;

  struct Request {
    int64_t bytes;
    Half half;
    int64_t made_at;   ///< Number of the event.
    int64_t freed_at;  ///< The same; kNever where no half ran.
    bool is_left_native = false;
    bool is_placed() const { return freed_at != kNever && !is_left_native; }
  };
  struct Event {
    int64_t request;  ///< kOutside for memory from outside of the step.
    int64_t bytes;    ///< Negative for a free.
    Half half;
  };

  /// Returns the memory of a step beside its block.
  ArenaMemory memory_beside() const {
    ArenaMemory memory;
    int64_t backward_bytes = 0;
    for (const Event& event : events_) {
      if (event.request != kOutside && requests_[static_cast<size_t>(event.request)].is_placed()) continue;
      const bool is_forward = event.half == Half::kForward;
      int64_t& bytes = is_forward ? memory.forward_left_bytes : backward_bytes;
      int64_t& peak_bytes = is_forward ? memory.forward_peak_bytes : memory.backward_peak_bytes;
      bytes += event.bytes;
      peak_bytes = std::max(peak_bytes, bytes);
    }
    return memory;
  }

  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::vector<Event> events_;
  std::unordered_map<const void*, size_t> live_;
  std::optional<Half> half_;
};

bool ArenaLayout::has_same_requests(const ArenaLayout& other) const {
  const auto is_same = [](const Request& a, const Request& b) {
    return a.bytes == b.bytes && (a.offset == kNative) == (b.offset == kNative);
  };
  for (size_t half = 0; half < requests.size(); ++half)
    if (!std::ranges::equal(requests[half], other.requests[half], is_same)) return false;
  return true;
}

Arena::Arena(c10::Device device, bool fills) : device_(device), fills_(fills) {}

bool Arena::fills_by_environment() {
  const char* const value = std::getenv("HEADROOM_ARENA_FILL");  // NOLINT(concurrency-mt-unsafe): nobody sets it.
  return value != nullptr && *value != '\0';
}

std::shared_ptr<ArenaRun> Arena::begin() {
  std::shared_ptr<const ArenaLayout> layout;
  {
    const std::lock_guard lock(mutex_);
    if (is_in_use_) {
      ++statistics_.overtaken;
      return nullptr;
    }
    is_in_use_ = true;
    layout = layout_;
  }
  return std::shared_ptr<ArenaRun>(new ArenaRun(shared_from_this(), std::move(layout)));
}

std::optional<ArenaMemory> Arena::memory() const {
  const std::lock_guard lock(mutex_);
  return layout_ ? std::optional(layout_->memory) : std::nullopt;
}

ArenaStatistics Arena::statistics() const {
  const std::lock_guard lock(mutex_);
  ArenaStatistics statistics = statistics_;
  statistics.block_bytes = layout_ ? layout_->memory.block_bytes : 0;
  return statistics;
}

ArenaRun::ArenaRun(std::shared_ptr<Arena> arena, std::shared_ptr<const ArenaLayout> layout)
    : arena_(std::move(arena)), layout_(std::move(layout)) {
  try {
    if (layout_)
      block_ = std::make_shared<ArenaBlock>(arena_->device_, layout_->memory.block_bytes, arena_->fills_);
    else
      recording_ = std::make_shared<Recording>();
  } catch (...) {
    end();
    throw;
  }
}

ArenaRun::~ArenaRun() { end(); }

/// Gives the arena to the next step. The block is freed here, or with the last memory of it that is in use: a block that
/// is to be kept from step to step would pass to the arena here.
void ArenaRun::end() {
  const std::shared_ptr<Arena> arena = std::exchange(arena_, nullptr);
  if (!arena) return;
  block_.reset();
  recording_.reset();
  const std::lock_guard lock(arena->mutex_);
  arena->is_in_use_ = false;
  arena->statistics_.served += served_;
  arena->statistics_.native += native_;
  arena->statistics_.missed += missed_;
}

void ArenaRun::leave_native(const void* pointer) {
  if (recording_ && pointer != nullptr) recording_->leave_native(pointer);
}

void ArenaRun::finish() {
  if (!arena_) return;
  const std::shared_ptr<Arena> arena = arena_;
  std::shared_ptr<const ArenaLayout> recorded;
  if (recording_) recorded = recording_->make_layout(native_alignment(arena->device_));
  const bool is_bad = missed_ > 0 || (block_ && block_->is_in_use());
  {
    const std::lock_guard lock(arena->mutex_);
    ArenaStatistics& statistics = arena->statistics_;
    statistics.recordings += recorded ? 1 : 0;
    statistics.bad_in_row = is_bad ? statistics.bad_in_row + 1 : 0;
    const bool may_record = statistics.recordings < Arena::kMostRecordings;
    if (recorded && (!may_record || (arena->recorded_ && recorded->has_same_requests(*arena->recorded_))))
      arena->layout_ = recorded;
    if (statistics.bad_in_row >= Arena::kMissesToRecord && may_record) arena->layout_.reset();
    arena->recorded_ = std::move(recorded);
  }
  end();
}

/// Returns the next recorded request of this size, or null. Those before it are not made in this step.
const ArenaLayout::Request* ArenaRun::match(Half half, int64_t bytes) {
  const std::vector<ArenaLayout::Request>& requests = layout_->requests[static_cast<size_t>(half)];
  size_t& next = next_[static_cast<size_t>(half)];
  const size_t end = std::min(requests.size(), next + kLookahead);
  for (size_t i = next; i < end; ++i) {
    if (requests[i].bytes != bytes) continue;
    next = i + 1;
    return &requests[i];
  }
  return nullptr;
}

ArenaScope::ArenaScope(ArenaRun* run, Half half) : run_(run), half_(half), outer_(innermost_scope) {
  if (run_ == nullptr) return;
  innermost_scope = this;
  if (run_->recording_) run_->recording_->set_half(half_);
}

ArenaScope::~ArenaScope() {
  if (run_ == nullptr) return;
  innermost_scope = outer_;
  if (run_->recording_) run_->recording_->set_half(std::nullopt);
}

ArenaScope* ArenaScope::innermost() { return innermost_scope; }

ArenaScope::Memory ArenaScope::serve(int64_t bytes) {
  if (!run_->block_) return {};
  const ArenaLayout::Request* const request = run_->match(half_, bytes);
  if (request != nullptr && request->offset == ArenaLayout::kNative) {
    ++run_->native_;
    return {};
  }
  void* const pointer = request == nullptr ? nullptr : run_->block_->hand_out(request->offset, bytes);
  ++(pointer == nullptr ? run_->missed_ : run_->served_);
  if (pointer == nullptr) return {};
  return {pointer, run_->block_};
}

std::shared_ptr<MemoryOwner> ArenaScope::record(const void* pointer, int64_t bytes) {
  if (!run_->recording_) return nullptr;
  run_->recording_->add(pointer, bytes, half_);
  return run_->recording_;
}

void ArenaScope::note_free(const MemoryOwner* owner, int64_t bytes) {
  if (run_->recording_ && owner != run_->recording_.get()) run_->recording_->add_free(bytes, half_);
}

NoArena::NoArena() : hidden_(std::exchange(innermost_scope, nullptr)) {}

NoArena::~NoArena() { innermost_scope = hidden_; }

}  // namespace headroom::internal
