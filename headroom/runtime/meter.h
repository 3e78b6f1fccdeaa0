#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace headroom {

/// One point of a meter's timeline.
struct MemoryMark {
  std::string name;
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;  ///< Peak since the previous mark; for the first mark, since the meter's construction.
  int64_t time_ns = 0;     ///< Time since the meter's construction, by the host's clock.
};

/// Measures the bytes of tensors on one device from its construction on, for all threads. Several meters may exist at
/// once, each with a peak and a timeline of its own; only one thread at a time may use a meter. Each call takes
/// constant time per existing meter, and the cost of an allocation does not depend on their number.
///
/// CPU: the first meter puts a counting allocator over PyTorch's, which stays for the rest of the process. From then
/// on, every storage that PyTorch allocates counts with the bytes requested. Not counted are storages allocated before
/// (resized ones included, since a storage keeps its allocator), memory that PyTorch does not allocate (from_blob,
/// shared and pinned memory) and buffers inside MKL and oneDNN. To count everything, make a meter before the first
/// tensor, and before other threads allocate: PyTorch's switch of allocators is not safe for threads.
///
/// CUDA: the bytes allocated by the caching allocator, including the workspaces of cuBLAS and cuDNN where they come
/// from it. That allocator keeps one peak per device. Meters restart it at their construction, resets and marks, after
/// every existing meter has taken it into account. torch.cuda.max_memory_allocated() is therefore the peak since the
/// last of these, and a reset of it by other code hides earlier peaks from the meters.
///
/// An allocation of another thread during a restart of the peak may count before or after the restart. On CUDA, the old
/// peak is read and then restarted, and an allocation that is freed again between the two is missed.
class Meter {
 public:
  /// Makes a meter of `device`. Throws InvalidInput if `device` is neither the CPU nor a CUDA device that this process
  /// has, or if other code has put another CPU allocator over the counting one. A CUDA device without an index is the
  /// current one.
  explicit Meter(c10::Device device);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  c10::Device device() const { return device_; }

  /// Returns the bytes that are allocated and counted now, including those allocated before this meter.
  int64_t current_bytes() const;

  /// Returns the maximum of current_bytes() since the construction or the last reset_peak().
  int64_t peak_bytes() const;

  /// Restarts peak_bytes(). Does not change the timeline or the peak of its next mark.
  void reset_peak();

  /// Adds a point to the timeline. Does not change peak_bytes().
  void mark(std::string name);

  const std::vector<MemoryMark>& timeline() const { return timeline_; }

  class DeviceCounter;

  /// A meter's own peaks, without what the device has reached since its peak was last restarted.
  struct Peaks {
    int64_t since_reset_bytes = 0;
    int64_t since_mark_bytes = 0;
  };

 private:
  c10::Device device_;
  DeviceCounter* counter_;
  std::chrono::steady_clock::time_point start_;
  Peaks peaks_;
  std::vector<MemoryMark> timeline_;
};

/// Returns the memory that the device's allocator caches to the device, so that later allocations are not split from
/// blocks of other sizes. Does nothing on the CPU.
void release_cached_memory(c10::Device device);

/// Returns the bytes that a storage of `requested_bytes` counts on `device`: on the CPU the request itself, on CUDA the
/// next multiple of 512. The caching allocator may use a cached block of more than 1 MiB that is up to 1 MiB larger
/// than this, and its setting roundup_power2_divisions makes it round up further. Throws InvalidInput on other devices
/// and on a negative request.
int64_t allocated_bytes(int64_t requested_bytes, c10::Device device);

}  // namespace headroom
