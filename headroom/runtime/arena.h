#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headroom::internal {

/// Owns memory that an allocator has handed out, or watches it. Any thread may free it.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;

  /// Notes that the memory at `pointer` is no longer in use.
  virtual void release(void* pointer) = 0;
};

/// The memory of a step that runs in its arena. Bytes are as the native allocator counts them.
struct ArenaMemory {
  int64_t block_bytes = 0;  ///< The block, which is allocated from the beginning of forward to the end of backward.
  // Of the memory beside the block, which is allocated and freed while the halves run:
  int64_t forward_peak_bytes = 0;   ///< Largest increase since the beginning of forward.
  int64_t forward_left_bytes = 0;   ///< Increase over forward; negative where it frees more than it leaves.
  int64_t backward_peak_bytes = 0;  ///< Largest increase since the beginning of backward.
  bool operator==(const ArenaMemory&) const = default;
};

struct ArenaStatistics {
  int64_t block_bytes = 0;  ///< Of the block now; 0 while the next step records.
  int64_t served = 0;       ///< Requests that were served from a block, in all steps.
  int64_t native = 0;       ///< Requests of later steps that the layout leaves to the native allocator.
  int64_t missed = 0;       ///< Requests that were to be served, or were unknown, and went to the native allocator.
  int64_t recordings = 0;   ///< Steps that have recorded.
  int64_t bad_in_row = 0;   ///< Last steps with misses, or with memory of the block that was still in use at their end.
  int64_t overtaken = 0;    ///< Steps that ran without the arena, because another one was in it.
};

/// The addresses of the requests of a step.
struct ArenaLayout {
  static constexpr int64_t kNative = -1;
  struct Request {
    int64_t bytes = 0;
    int64_t offset = kNative;
  };

  /// Returns whether a step with the other layout makes the same requests and leaves the same ones native.
  bool has_same_requests(const ArenaLayout& other) const;

  std::array<std::vector<Request>, 2> requests;  ///< By half, in order.
  ArenaMemory memory;
};

class ArenaRun;

/// The memory of one step, a graph with a schedule, in one block.
///
/// The first steps record the sequence of their requests and when each was freed, on the native allocator, until two in a
/// row made the same: a first step makes some that no later one makes. A request that was freed while a half of the step
/// ran gets an offset, by solve_placement() on these lifetimes. One that was freed outside of the halves, or not at all,
/// escapes: its memory is the native allocator's, always. In later steps, a request of the recorded size gets its offset
/// in the block, unless memory that was handed out before and is still in use overlaps. Requests that do not match go to
/// the native allocator. Where steps in a row have some, the next ones record anew, kMostRecordings times in all.
///
/// The arena knows neither graphs nor planners, and no allocator either: allocators ask ArenaScope::innermost().
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr int kMostRecordings = 6;  // After the last one its layout stays, whatever the next step requests.
  static constexpr int kMissesToRecord = 2;  // Steps in a row with misses, after which the next ones record.

  /// Makes the arena of a step on `device`. It must be owned by a shared_ptr. If `fills`, freed memory of the block is
  /// filled with bytes 0xff on the CPU, so that a use after the free computes NaNs.
  explicit Arena(c10::Device device, bool fills = fills_by_environment());

  /// Begins a step. Returns null where another step is in the arena; this one then runs without it.
  std::shared_ptr<ArenaRun> begin();

  /// Returns the memory of the next step, or none if that one records.
  std::optional<ArenaMemory> memory() const;

  ArenaStatistics statistics() const;

 private:
  friend class ArenaRun;

  /// Returns whether $HEADROOM_ARENA_FILL is set and not empty.
  static bool fills_by_environment();

  const c10::Device device_;
  const bool fills_;
  mutable std::mutex mutex_;
  bool is_in_use_ = false;
  std::shared_ptr<const ArenaLayout> layout_;    ///< Null: the next step records.
  std::shared_ptr<const ArenaLayout> recorded_;  ///< Of the last step, if that has recorded.
  ArenaStatistics statistics_;
};

class ArenaBlock;
class Recording;

enum class Half : uint8_t { kForward, kBackward };

/// A step in flight that records or runs in its arena. Its halves run in ArenaScopes, one at a time. Freed without
/// finish(), as after an exception, it teaches nothing. Memory of its block that is still in use then keeps the block.
class ArenaRun {
 public:
  ~ArenaRun();
  ArenaRun(const ArenaRun&) = delete;
  ArenaRun& operator=(const ArenaRun&) = delete;

  /// Has the native allocator serve the request of this memory in later steps: the user may keep it.
  void leave_native(const void* pointer);

  /// Ends the step after its backward.
  void finish();

  bool is_recording() const { return recording_ != nullptr; }

 private:
  friend class Arena;
  friend class ArenaScope;

  ArenaRun(std::shared_ptr<Arena> arena, std::shared_ptr<const ArenaLayout> layout);
  const ArenaLayout::Request* match(Half half, int64_t bytes);
  void end();

  std::shared_ptr<Arena> arena_;  ///< Null after the end.
  std::shared_ptr<const ArenaLayout> layout_;
  std::shared_ptr<ArenaBlock> block_;     ///< Null while it records.
  std::shared_ptr<Recording> recording_;  ///< Null while it does not.
  std::array<size_t, 2> next_ = {};       ///< By half: the next request of the layout.
  int64_t served_ = 0;
  int64_t native_ = 0;
  int64_t missed_ = 0;
};

/// Runs a half of a step in its arena on the calling thread. Scopes nest: the innermost one is asked. A scope without a
/// run changes nothing.
class ArenaScope {
 public:
  ArenaScope(ArenaRun* run, Half half);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

  /// Returns the innermost scope of the calling thread; null for none.
  static ArenaScope* innermost();

  struct Memory {
    void* pointer = nullptr;
    std::shared_ptr<MemoryOwner> owner;
  };
  /// Returns memory of the block for a request of more than 0 bytes, or null: the native allocator serves it.
  Memory serve(int64_t bytes);

  /// Notes that the native allocator has served a request. Returns who watches it, or null.
  std::shared_ptr<MemoryOwner> record(const void* pointer, int64_t bytes);

  /// Notes that native memory has been freed that this scope's run does not watch.
  void note_free(const MemoryOwner* owner, int64_t bytes);

 private:
  ArenaRun* const run_;
  const Half half_;
  ArenaScope* const outer_;
};

/// While it exists, no arena serves the calling thread.
class NoArena {
 public:
  NoArena();
  ~NoArena();
  NoArena(const NoArena&) = delete;
  NoArena& operator=(const NoArena&) = delete;

 private:
  ArenaScope* const hidden_;
};

}  // namespace headroom::internal
