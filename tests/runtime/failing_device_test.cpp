/// A meter of a device that fails, which here is no device at all.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>

#include <limits>

#include "headroom/runtime/meter.h"

namespace headroom::internal {
namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, c10::impl::kFakeGuardImplMaxDevices - 1);

/// The allocator of a device that can be made to fail, as every call does after an error of a CUDA device.
class FailingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t /*bytes*/) override { TORCH_CHECK(false, "there is no device"); }
  void copy_data(void* /*destination*/, const void* /*source*/, size_t /*bytes*/) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { check(); }
  void recordStream(const c10::DataPtr& /*pointer*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    check();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = 512;
    stats.allocated_bytes[0].peak = peak_bytes;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {
    check();
    peak_bytes = 512;
  }

  int64_t peak_bytes = 512;
  int calls_before_failure = -1;  ///< Negative: it does not fail.

 private:
  void check() {
    TORCH_CHECK(calls_before_failure != 0, "the device failed");
    if (calls_before_failure > 0) --calls_before_failure;
  }
};

/// Puts the device in the place of CUDA's during its lifetime. Its allocator is never destroyed, as meters expect.
class FailingDevice : public testing::Test {
 protected:
  FailingDevice() : guard_of_cuda_(registry().exchange(&guard_)) {
    if (guard_of_cuda_ != nullptr) allocator_of_cuda_ = c10::GetAllocator(kDevice.type());
    c10::SetAllocator(kDevice.type(), &allocator(), std::numeric_limits<uint8_t>::max());
  }
  ~FailingDevice() override {
    c10::SetAllocator(kDevice.type(), allocator_of_cuda_, std::numeric_limits<uint8_t>::max());
    registry() = guard_of_cuda_;
  }

  static FailingAllocator& allocator() {
    static auto& allocator = *new FailingAllocator;
    return allocator;
  }

 private:
  static std::atomic<const c10::impl::DeviceGuardImplInterface*>& registry() {
    return c10::impl::device_guard_impl_registry[static_cast<size_t>(kDevice.type())];
  }

  c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard_;
  const c10::impl::DeviceGuardImplInterface* guard_of_cuda_;
  c10::Allocator* allocator_of_cuda_ = nullptr;
};

TEST_F(FailingDevice, MetersThrowAndAreDestroyed) {
  Meter outlasting(kDevice);
  {
    Meter meter(kDevice);
    for (const int calls : {0, 1}) {  // Reading the peak fails, or restarting it.
      allocator().calls_before_failure = calls;
      EXPECT_THROW(meter.mark("failed"), c10::Error);
      allocator().calls_before_failure = calls;
      EXPECT_THROW(meter.reset_peak(), c10::Error);
      allocator().calls_before_failure = calls;
      EXPECT_THROW(Meter{kDevice}, c10::Error);
    }
    EXPECT_THROW(meter.current_bytes(), c10::Error);
    EXPECT_THROW(release_cached_memory(kDevice), c10::Error);
  }
  // Nothing is left of the failures: no lock, no meter that is gone, and no point of a timeline.
  allocator().calls_before_failure = -1;
  allocator().peak_bytes = 2048;
  EXPECT_EQ(outlasting.current_bytes(), 512);
  Meter meter(kDevice);
  EXPECT_EQ(meter.peak_bytes(), 512);
  EXPECT_EQ(outlasting.peak_bytes(), 2048);
  outlasting.mark("works");
  ASSERT_EQ(outlasting.timeline().size(), 1);
  EXPECT_EQ(outlasting.timeline()[0].peak_bytes, 2048);
}

}  // namespace
}  // namespace headroom::internal
