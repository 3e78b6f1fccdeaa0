#include "headroom/runtime/meter.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "headroom/core/error.h"
#include "headroom/runtime/arena.h"

namespace headroom {
using namespace internal;

/// Counts one device's bytes and keeps one peak for all meters on the device. Restarting the peak for one meter first
/// folds it into the peaks of all, so that no meter loses any.
class Meter::DeviceCounter {
 public:
  struct Reading {
    int64_t current_bytes;
    int64_t peak_bytes;  ///< At least current_bytes.
  };

  virtual ~DeviceCounter() = default;

  virtual Reading read() const = 0;

  void add(Meter::Peaks& peaks) {
    const std::lock_guard lock(mutex_);
    const int64_t current_bytes = fold();
    peaks = {current_bytes, current_bytes};
    meters_.push_back(&peaks);
  }

  void remove(const Meter::Peaks& peaks) {
    const std::lock_guard lock(mutex_);
    std::erase(meters_, &peaks);
  }

  int64_t peak_bytes(const Meter::Peaks& peaks) const {
    const std::lock_guard lock(mutex_);
    return std::max(peaks.since_reset_bytes, read().peak_bytes);
  }

  void reset_peak(Meter::Peaks& peaks) {
    const std::lock_guard lock(mutex_);
    peaks.since_reset_bytes = fold();
  }

  /// Returns the current bytes and the peak since the last call for these peaks.
  Reading mark(Meter::Peaks& peaks) {
    const std::lock_guard lock(mutex_);
    const int64_t current_bytes = fold();
    return {current_bytes, std::exchange(peaks.since_mark_bytes, current_bytes)};
  }

 private:
  /// Restarts the device's peak at the current bytes, and returns what both were before.
  virtual Reading restart_peak() = 0;

  /// Folds the device's peak into the peaks of all meters, and returns the current bytes.
  int64_t fold() {
    const Reading reading = restart_peak();
    for (Meter::Peaks* peaks : meters_) {
      peaks->since_reset_bytes = std::max(peaks->since_reset_bytes, reading.peak_bytes);
      peaks->since_mark_bytes = std::max(peaks->since_mark_bytes, reading.peak_bytes);
    }
    return reading.current_bytes;
  }

  mutable std::mutex mutex_;
  std::vector<Meter::Peaks*> meters_;
};

namespace {

/// Memory that was handed out.
struct Handed {
  int64_t bytes = 0;
  std::shared_ptr<MemoryOwner> owner;  ///< Told when the memory is freed; may be null.
};

/// A table of the memory that was handed out, by pointer. It is sharded, so that threads that allocate at once seldom
/// wait for each other.
class MemoryTable {
 public:
  void insert(void* pointer, Handed handed) {
    Shard& shard = shard_of(pointer);
    const std::lock_guard lock(shard.mutex);
    shard.handed.emplace(pointer, std::move(handed));
  }

  std::optional<Handed> take(void* pointer) {
    Shard& shard = shard_of(pointer);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.handed.find(pointer);
    if (found == shard.handed.end()) return std::nullopt;
    Handed handed = std::move(found->second);
    shard.handed.erase(found);
    return handed;
  }

  void lock_all() {
    for (Shard& shard : shards_) shard.mutex.lock();
  }

  void unlock_all() {
    for (Shard& shard : shards_) shard.mutex.unlock();
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    ska::flat_hash_map<void*, Handed> handed;
  };

  static constexpr int kShardBits = 5;

  /// Returns the shard of a pointer by the top bits of a multiplicative hash, because the low bits of aligned pointers
  /// are equal.
  Shard& shard_of(void* pointer) {
    const uint64_t hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer)) * 0x9E3779B97F4A7C15U;
    return shards_[hash >> (64 - kShardBits)];
  }

  std::array<Shard, size_t{1} << kShardBits> shards_;
};

/// Counts what passes through it to the CPU allocator that was in place before. Where the calling thread is in the scope
/// of an arena, it asks that first. It is never destroyed, because tensors may outlive main.
class CountingAllocator final : public c10::Allocator, public Meter::DeviceCounter {
 public:
  /// Returns the counting allocator. Throws InvalidInput if it is not, or no longer, the process's CPU allocator.
  static CountingAllocator& get() {
    static CountingAllocator& instance = install();
    if (c10::GetCPUAllocator() != &instance) {
      throw InvalidInput("meter: the CPU allocator was replaced after the first meter was made, so nothing is counted");
    }
    return instance;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const auto counted_bytes = static_cast<int64_t>(bytes);
    ArenaScope* const scope = bytes > 0 ? ArenaScope::innermost() : nullptr;
    if (scope != nullptr) {
      ArenaScope::Memory memory = scope->serve(counted_bytes);
      if (memory.pointer != nullptr) {
        of_arenas_.insert(memory.pointer, {counted_bytes, std::move(memory.owner)});
        ++of_arenas_count_;
        return {memory.pointer, memory.pointer, &deallocate, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr data = upstream_->allocate(bytes);
    void* const pointer = data.get();
    if (pointer != nullptr) {
      counted_.insert(pointer, {counted_bytes, scope == nullptr ? nullptr : scope->record(pointer, counted_bytes)});
      raise_peak(current_bytes_.fetch_add(counted_bytes) + counted_bytes);
    }
    // The pointer is also the context, as the raw deleter of the allocator below requires.
    static_cast<void>(data.release_context());
    return {pointer, pointer, &deallocate, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    upstream_->copy_data(destination, source, bytes);
  }

  Reading read() const override {
    const int64_t current_bytes = current_bytes_.load();
    return {current_bytes, std::max(peak_bytes_.load(), current_bytes)};
  }

 private:
  CountingAllocator(c10::Allocator* upstream, c10::DeleterFnPtr upstream_deleter)
      : upstream_(upstream), upstream_deleter_(upstream_deleter) {}

  static CountingAllocator& install() {
    c10::Allocator* const upstream = c10::GetCPUAllocator();
    const c10::DeleterFnPtr upstream_deleter = upstream->raw_deleter();
    if (upstream_deleter == nullptr) {
      throw InvalidInput("meter: the CPU allocator in place has no raw deleter, so it cannot be counted");
    }
    installed_ = new CountingAllocator(upstream, upstream_deleter);
    // A fork while another thread holds a shard would leave that shard locked forever in the child.
    pthread_atfork([] { installed_->lock_tables(); }, [] { installed_->unlock_tables(); },
                   [] { installed_->unlock_tables(); });
    c10::SetCPUAllocator(installed_, std::numeric_limits<uint8_t>::max());
    return *installed_;
  }

  void lock_tables() {
    counted_.lock_all();
    of_arenas_.lock_all();
  }

  void unlock_tables() {
    of_arenas_.unlock_all();
    counted_.unlock_all();
  }

  static void deallocate(void* pointer) { installed_->free(pointer); }

  /// Frees a pointer. Removes it from its table first, since another thread may be given the same address right after.
  /// A pointer from before this allocator is in no table. The first memory of an arena's block has the address of the
  /// block, which is freed later.
  void free(void* pointer) {
    if (pointer != nullptr && of_arenas_count_ > 0) {
      if (const std::optional<Handed> handed = of_arenas_.take(pointer)) {
        --of_arenas_count_;
        handed->owner->release(pointer);
        return;
      }
    }
    if (pointer != nullptr) {
      if (const std::optional<Handed> handed = counted_.take(pointer)) {
        current_bytes_.fetch_sub(handed->bytes);
        if (handed->owner != nullptr) handed->owner->release(pointer);
        if (ArenaScope* const scope = ArenaScope::innermost()) scope->note_free(handed->owner.get(), handed->bytes);
      }
    }
    upstream_deleter_(pointer);
  }

  void raise_peak(int64_t bytes) {
    int64_t peak_bytes = peak_bytes_.load();
    while (peak_bytes < bytes && !peak_bytes_.compare_exchange_weak(peak_bytes, bytes)) {
    }
  }

  /// Restarts the peak. Bytes that other threads allocate meanwhile are in the returned peak, in the new one, or in
  /// both.
  Reading restart_peak() override {
    const int64_t taken_bytes = peak_bytes_.exchange(current_bytes_.load());
    const int64_t current_bytes = current_bytes_.load();
    raise_peak(current_bytes);
    return {current_bytes, std::max(taken_bytes, current_bytes)};
  }

  static inline CountingAllocator* installed_ = nullptr;

  c10::Allocator* const upstream_;
  const c10::DeleterFnPtr upstream_deleter_;
  MemoryTable counted_;
  MemoryTable of_arenas_;  ///< Parts of blocks, which are counted as a whole.
  std::atomic<int64_t> of_arenas_count_ = 0;
  alignas(64) std::atomic<int64_t> current_bytes_ = 0;
  std::atomic<int64_t> peak_bytes_ = 0;
};

/// Reads the statistics of a device's caching allocator.
class CachingCounter final : public Meter::DeviceCounter {
 public:
  explicit CachingCounter(c10::Device device)
      : allocator_(c10::getDeviceAllocator(device.type())), index_(device.index()) {
    if (!allocator_->initialized()) at::globalContext().lazyInitDevice(device.type());
  }

  Reading read() const override {
    const auto stats = allocator_->getDeviceStats(index_);
    const auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return {bytes.current, bytes.peak};
  }

 private:
  Reading restart_peak() override {
    const Reading reading = read();
    allocator_->resetPeakStats(index_);
    return reading;
  }

  c10::DeviceAllocator* allocator_;
  c10::DeviceIndex index_;
};

void check_kind(c10::Device device) {
  if (!device.is_cpu() && !device.is_cuda()) {
    throw InvalidInput("meter: expected a cpu or cuda device, found " + device.str());
  }
}

/// Returns the device with the index of a CUDA device, which is the current one if none is given.
c10::Device resolve(c10::Device device) {
  check_kind(device);
  if (device.is_cpu()) return c10::Device(c10::DeviceType::CPU);
  const int count = c10::impl::hasDeviceGuardImpl(device.type())
                        ? static_cast<int>(c10::impl::VirtualGuardImpl(device.type()).deviceCount())
                        : 0;
  if (count == 0 || device.index() >= count) {
    throw InvalidInput("meter: expected one of this process's " + std::to_string(count) + " cuda devices, found " +
                       device.str());
  }
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Returns the counter of a device. Counters are never destroyed, as allocators are not.
Meter::DeviceCounter& counter_of(c10::Device device) {
  if (device.is_cpu()) return CountingAllocator::get();
  static auto& mutex = *new std::mutex;
  static auto& counters = *new std::map<c10::DeviceIndex, std::unique_ptr<CachingCounter>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CachingCounter>& counter = counters[device.index()];
  if (counter == nullptr) counter = std::make_unique<CachingCounter>(device);
  return *counter;
}

}  // namespace

Meter::Meter(c10::Device device)
    : device_(resolve(device)), counter_(&counter_of(device_)), start_(std::chrono::steady_clock::now()) {
  counter_->add(peaks_);
}

Meter::~Meter() { counter_->remove(peaks_); }

int64_t Meter::current_bytes() const { return counter_->read().current_bytes; }

int64_t Meter::peak_bytes() const { return counter_->peak_bytes(peaks_); }

void Meter::reset_peak() { counter_->reset_peak(peaks_); }

void Meter::mark(std::string name) {
  const DeviceCounter::Reading reading = counter_->mark(peaks_);
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start_;
  timeline_.push_back({std::move(name), reading.current_bytes, reading.peak_bytes, time.count()});
}

void release_cached_memory(c10::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

int64_t allocated_bytes(int64_t requested_bytes, c10::Device device) {
  constexpr int64_t kCudaBlockBytes = 512;
  check_kind(device);
  if (requested_bytes < 0 || requested_bytes > std::numeric_limits<int64_t>::max() - kCudaBlockBytes) {
    throw InvalidInput("allocated_bytes: expected a number of bytes, found " + std::to_string(requested_bytes));
  }
  if (device.is_cpu()) return requested_bytes;
  return (requested_bytes + kCudaBlockBytes - 1) / kCudaBlockBytes * kCudaBlockBytes;
}

}  // namespace headroom
