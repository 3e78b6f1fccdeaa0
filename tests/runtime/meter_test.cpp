#include "headroom/runtime/meter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);
const c10::Device kCuda(c10::DeviceType::CUDA);

at::Tensor make_bytes(int64_t bytes, c10::Device device = kCpu) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

at::Tensor made_before_any_meter = make_bytes(1000);
at::Tensor destroyed_after_main;

std::vector<std::pair<int64_t, int64_t>> current_and_peak(const std::vector<MemoryMark>& timeline) {
  std::vector<std::pair<int64_t, int64_t>> points;
  for (const MemoryMark& mark : timeline) points.emplace_back(mark.current_bytes, mark.peak_bytes);
  return points;
}

TEST(Meter, CountsTheBytesAskedFor) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  const at::Tensor floats = at::empty({3, 5});
  EXPECT_EQ(meter.current_bytes() - start_bytes, 60);  // 15 * 4
  const at::Tensor doubles = at::empty({7}, at::kDouble);
  EXPECT_EQ(meter.current_bytes() - start_bytes, 116);  // 60 + 7 * 8
  const at::Tensor byte = make_bytes(1);
  EXPECT_EQ(meter.current_bytes() - start_bytes, 117);
  const at::Tensor scalar = at::ones({}, at::kHalf);
  EXPECT_EQ(meter.current_bytes() - start_bytes, 119);
  const at::Tensor nothing = make_bytes(0);
  EXPECT_EQ(meter.current_bytes() - start_bytes, 119);
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 119);
}

TEST(Meter, PeakOfASequence) {
  Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  EXPECT_EQ(meter.peak_bytes(), start_bytes);
  at::Tensor a = make_bytes(1000);
  at::Tensor b = make_bytes(500);  // 1500
  a.reset();                       // 500
  at::Tensor c = make_bytes(800);  // 1300
  EXPECT_EQ(meter.current_bytes() - start_bytes, 1300);
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 1500);
  meter.reset_peak();
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 1300);
  b.reset();                               // 800
  const at::Tensor sum = c.bitwise_not();  // 1600
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 1600);
}

TEST(Meter, ViewsAliasesAndBorrowedMemoryCostNothing) {
  const Meter meter(kCpu);
  const at::Tensor base = make_bytes(600);
  const int64_t start_bytes = meter.current_bytes();
  std::array<uint8_t, 64> borrowed{};
  {
    const at::Tensor alias = base;
    const at::Tensor view = base.view({20, 30}).t().narrow(0, 3, 4);
    const at::Tensor detached = view.detach();
    const at::Tensor blob = at::from_blob(borrowed.data(), {64}, at::kByte);
    EXPECT_EQ(meter.current_bytes(), start_bytes);
    const at::Tensor copy = view.contiguous();
    EXPECT_EQ(meter.current_bytes() - start_bytes, 80);  // 4 * 20
  }
  EXPECT_EQ(meter.current_bytes(), start_bytes);
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 80);
}

TEST(Meter, AViewKeepsItsWholeStorage) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  at::Tensor base = make_bytes(600);
  at::Tensor view = base.narrow(0, 10, 1);
  base.reset();
  EXPECT_EQ(meter.current_bytes() - start_bytes, 600);
  view.reset();
  EXPECT_EQ(meter.current_bytes(), start_bytes);
}

TEST(Meter, ResizeHoldsOldAndNewAtOnce) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  at::Tensor tensor = make_bytes(100);
  tensor.resize_({300});
  EXPECT_EQ(meter.current_bytes() - start_bytes, 300);
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 400);
  tensor.resize_({50});  // The storage stays.
  EXPECT_EQ(meter.current_bytes() - start_bytes, 300);
}

TEST(Meter, TensorsFromBeforeTheFirstMeterAreNotCounted) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  made_before_any_meter.reset();
  EXPECT_EQ(meter.current_bytes(), start_bytes);

  // Such a pointer can also be freed through the raw interface of the current allocator.
  void* const pointer = c10::GetDefaultCPUAllocator()->raw_allocate(128);
  c10::GetCPUAllocator()->raw_deallocate(pointer);
  EXPECT_EQ(meter.current_bytes(), start_bytes);
  EXPECT_EQ(meter.peak_bytes(), start_bytes);
}

TEST(Meter, TheAllocatorKeepsPyTorchsContract) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  ASSERT_NE(allocator->raw_deleter(), nullptr);
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4097}, size_t{1} << 20}) {
    const c10::DataPtr data = allocator->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data.get()) % 64, 0U) << bytes;
    EXPECT_EQ(data.get(), data.get_context());
    EXPECT_EQ(data.get_deleter(), allocator->raw_deleter());
    EXPECT_EQ(data.device(), kCpu);
    EXPECT_TRUE(allocator->is_simple_data_ptr(data));
    EXPECT_EQ(meter.current_bytes() - start_bytes, static_cast<int64_t>(bytes));
  }
  const c10::DataPtr nothing = allocator->allocate(0);
  EXPECT_EQ(nothing.get(), nullptr);
  EXPECT_EQ(nothing.get_deleter(), allocator->raw_deleter());
  allocator->raw_deallocate(nullptr);
  EXPECT_EQ(meter.current_bytes(), start_bytes);

  void* const pointer = allocator->raw_allocate(3);
  std::copy_n("abc", 3, static_cast<char*>(pointer));
  const c10::DataPtr clone = allocator->clone(pointer, 3);
  EXPECT_EQ(std::string(static_cast<const char*>(clone.get()), 3), "abc");
  EXPECT_EQ(meter.current_bytes() - start_bytes, 6);
  allocator->raw_deallocate(pointer);
  EXPECT_EQ(meter.current_bytes() - start_bytes, 3);
}

TEST(Meter, AnAllocationThatFailsCountsNothing) {
  const Meter meter(kCpu);
  const int64_t start_bytes = meter.current_bytes();
  EXPECT_THROW(make_bytes(int64_t{1} << 60), std::exception);
  EXPECT_EQ(meter.current_bytes(), start_bytes);
  EXPECT_EQ(meter.peak_bytes(), start_bytes);
}

TEST(Meter, Timeline) {
  const at::Tensor before = make_bytes(10);
  Meter meter(kCpu);
  const int64_t base = meter.current_bytes();
  at::Tensor a = make_bytes(100);
  meter.mark("a");
  at::Tensor b = make_bytes(1000);
  b.reset();
  meter.mark("b and gone");
  meter.mark("nothing");
  a.reset();
  meter.reset_peak();  // Does not change the peak of the next mark.
  meter.mark("a gone");
  ASSERT_EQ(meter.timeline().size(), 4U);
  EXPECT_EQ(meter.timeline()[1].name, "b and gone");
  const std::vector<std::pair<int64_t, int64_t>> expected = {
      {base + 100, base + 100}, {base + 100, base + 1100}, {base + 100, base + 100}, {base, base + 100}};
  EXPECT_EQ(current_and_peak(meter.timeline()), expected);
  EXPECT_EQ(meter.peak_bytes(), base);
  EXPECT_GE(meter.timeline()[0].time_ns, 0);
  EXPECT_TRUE(std::ranges::is_sorted(meter.timeline(), {}, &MemoryMark::time_ns));
}

TEST(Meter, NestedMetersHaveTheirOwnPeaks) {
  Meter outer(kCpu);
  const int64_t base = outer.current_bytes();
  make_bytes(5000);
  {
    Meter inner(kCpu);
    EXPECT_EQ(inner.peak_bytes(), base);
    make_bytes(300);
    inner.mark("300");
    make_bytes(200);
    inner.mark("200");
    EXPECT_EQ(inner.peak_bytes(), base + 300);
    outer.reset_peak();
    EXPECT_EQ(inner.peak_bytes(), base + 300);
    EXPECT_EQ(outer.peak_bytes(), base);
    make_bytes(400);
    inner.reset_peak();
    EXPECT_EQ(inner.peak_bytes(), base);
  }
  EXPECT_EQ(outer.peak_bytes(), base + 400);
  outer.mark("all");
  EXPECT_EQ(outer.timeline()[0].peak_bytes, base + 5000);
}

TEST(Meter, AnExceptionInBetweenLeavesItUsable) {
  Meter meter(kCpu);
  const int64_t base = meter.current_bytes();
  try {
    const Meter inner(kCpu);
    const at::Tensor a = make_bytes(700);
    throw std::runtime_error("in between");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THROW(at::ones({2, 3}).mm(at::ones({4, 5})), std::exception);
  EXPECT_EQ(meter.current_bytes(), base);
  EXPECT_EQ(meter.peak_bytes(), base + 700);
  meter.mark("after");
  EXPECT_EQ(meter.timeline().back().peak_bytes, base + 700);
}

TEST(Meter, FreesAfterTheMeterIsGone) {
  const Meter later(kCpu);
  const int64_t base = later.current_bytes();
  at::Tensor tensor;
  {
    const Meter meter(kCpu);
    tensor = make_bytes(900);
  }
  EXPECT_EQ(later.current_bytes(), base + 900);
  tensor.reset();
  EXPECT_EQ(later.current_bytes(), base);
  destroyed_after_main = make_bytes(900);
}

TEST(Meter, ConvolutionForwardAndBackwardLeaveNothingBehind) {
  const at::Tensor input = at::ones({2, 3, 8, 8});
  at::Tensor weight = at::ones({4, 3, 3, 3}).requires_grad_();
  const auto step = [&] {
    at::conv2d(input, weight).sum().backward();
    weight.mutable_grad().reset();
  };
  step();  // Lets libraries allocate what they keep.
  const Meter meter(kCpu);
  const int64_t base = meter.current_bytes();
  step();
  EXPECT_EQ(meter.current_bytes(), base);
  EXPECT_GE(meter.peak_bytes() - base, 2 * 4 * 6 * 6 * 4);  // at least the output
  const int64_t first_peak_bytes = meter.peak_bytes();
  step();
  EXPECT_EQ(meter.peak_bytes(), first_peak_bytes);
}

/// A meter and the simplest bookkeeping of the bytes that it should report.
struct Watched {
  explicit Watched(int64_t current_bytes)
      : meter(std::make_unique<Meter>(kCpu)), peak_bytes(current_bytes), mark_peak_bytes(current_bytes) {}

  void see(int64_t current_bytes) {
    peak_bytes = std::max(peak_bytes, current_bytes);
    mark_peak_bytes = std::max(mark_peak_bytes, current_bytes);
  }

  std::unique_ptr<Meter> meter;
  int64_t peak_bytes;
  int64_t mark_peak_bytes;
};

TEST(Meter, RandomMetersAgreeWithPlainBookkeeping) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    int64_t current_bytes = Meter(kCpu).current_bytes();
    std::vector<at::Tensor> tensors;
    std::vector<Watched> meters;
    for (int i = 0; i < 300; ++i) {
      const uint64_t pick = random();
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          const auto bytes = static_cast<int64_t>(pick % 10000);
          tensors.push_back(make_bytes(bytes));
          current_bytes += bytes;
          for (Watched& watched : meters) watched.see(current_bytes);
          break;
        }
        case 3:
        case 4:
          if (tensors.empty()) break;
          std::swap(tensors[pick % tensors.size()], tensors.back());
          current_bytes -= tensors.back().numel();
          tensors.pop_back();
          break;
        case 5:
          if (pick % 3 == 0 && !meters.empty()) {
            meters.erase(meters.begin() + static_cast<std::ptrdiff_t>(pick % meters.size()));
          } else {
            meters.emplace_back(current_bytes);
          }
          break;
        case 6: {
          if (meters.empty()) break;
          Watched& watched = meters[pick % meters.size()];
          watched.meter->reset_peak();
          watched.peak_bytes = current_bytes;
          break;
        }
        default: {
          if (meters.empty()) break;
          Watched& watched = meters[pick % meters.size()];
          watched.meter->mark(std::to_string(i));
          ASSERT_EQ(watched.meter->timeline().back().current_bytes, current_bytes);
          ASSERT_EQ(watched.meter->timeline().back().peak_bytes, watched.mark_peak_bytes);
          watched.mark_peak_bytes = current_bytes;
          break;
        }
      }
      for (const Watched& watched : meters) {
        ASSERT_EQ(watched.meter->current_bytes(), current_bytes) << "after " << i;
        ASSERT_EQ(watched.meter->peak_bytes(), watched.peak_bytes) << "after " << i;
      }
    }
  }
}

TEST(MeterErrors, Devices) {
  EXPECT_THROW(Meter(c10::Device(c10::DeviceType::Meta)), InvalidInput);
  try {
    const Meter meter(c10::Device(c10::DeviceType::CUDA, 99));
    FAIL() << "no process has 100 devices";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:99"), std::string::npos) << error.what();
  }
}

TEST(MeterErrors, AnotherAllocatorOnTop) {
  const Meter meter(kCpu);
  c10::Allocator* const counting = c10::GetCPUAllocator();
  constexpr uint8_t kHighest = std::numeric_limits<uint8_t>::max();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kHighest);
  EXPECT_THROW(Meter{kCpu}, InvalidInput);
  c10::SetCPUAllocator(counting, kHighest);
  EXPECT_EQ(Meter(kCpu).current_bytes(), meter.current_bytes());
}

struct WithoutRawDeleter final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

TEST(MeterErrorsDeathTest, AnAllocatorThatCannotBeCounted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // In a new process, where no meter exists yet.
  EXPECT_EXIT(
      {
        static WithoutRawDeleter allocator;
        c10::SetCPUAllocator(&allocator);
        try {
          const Meter meter(kCpu);
        } catch (const InvalidInput&) {
          std::_Exit(7);
        }
      },
      testing::ExitedWithCode(7), "");
}

TEST(AllocatedBytes, RoundsAsTheAllocatorDoes) {
  EXPECT_EQ(allocated_bytes(0, kCpu), 0);
  EXPECT_EQ(allocated_bytes(513, kCpu), 513);
  EXPECT_EQ(allocated_bytes(0, kCuda), 0);
  EXPECT_EQ(allocated_bytes(1, kCuda), 512);
  EXPECT_EQ(allocated_bytes(512, kCuda), 512);
  EXPECT_EQ(allocated_bytes(513, kCuda), 1024);
  EXPECT_EQ(allocated_bytes(int64_t{1} << 40, kCuda), int64_t{1} << 40);
  EXPECT_THROW(allocated_bytes(-1, kCpu), InvalidInput);
  EXPECT_THROW(allocated_bytes(std::numeric_limits<int64_t>::max(), kCuda), InvalidInput);
  EXPECT_THROW(allocated_bytes(1, c10::Device(c10::DeviceType::Meta)), InvalidInput);
}

class MeterOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!c10::impl::hasDeviceGuardImpl(kCuda.type()) || c10::impl::VirtualGuardImpl(kCuda.type()).deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

TEST_F(MeterOnCuda, CountsRoundedBytes) {
  Meter meter(kCuda);
  EXPECT_EQ(meter.device(), c10::Device(c10::DeviceType::CUDA, 0));
  const int64_t base = meter.current_bytes();
  at::Tensor a = make_bytes(1, kCuda);
  at::Tensor b = make_bytes(513, kCuda);
  EXPECT_EQ(meter.current_bytes(), base + 1536);  // 512 + 1024
  a.reset();
  const at::Tensor nothing = make_bytes(0, kCuda);
  EXPECT_EQ(meter.current_bytes(), base + 1024);
  EXPECT_EQ(meter.peak_bytes(), base + 1536);
  meter.reset_peak();
  EXPECT_EQ(meter.peak_bytes(), base + 1024);
  for (const int64_t bytes : {int64_t{2048}, int64_t{100000}, int64_t{1} << 20, (int64_t{3} << 20) + 1}) {
    const int64_t before_bytes = meter.current_bytes();
    const at::Tensor tensor = make_bytes(bytes, kCuda);
    EXPECT_EQ(meter.current_bytes() - before_bytes, allocated_bytes(bytes, kCuda)) << bytes;
  }
}

TEST_F(MeterOnCuda, NestedMetersHaveTheirOwnPeaks) {
  Meter outer(kCuda);
  const int64_t base = outer.current_bytes();
  make_bytes(5 * 512, kCuda);
  {
    Meter inner(kCuda);
    EXPECT_EQ(inner.peak_bytes(), base);
    make_bytes(3 * 512, kCuda);
    inner.mark("3");
    make_bytes(2 * 512, kCuda);
    inner.mark("2");
    EXPECT_EQ(inner.timeline()[1].peak_bytes, base + 2 * 512);
    EXPECT_EQ(inner.peak_bytes(), base + 3 * 512);
    EXPECT_EQ(outer.peak_bytes(), base + 5 * 512);
  }
  make_bytes(4 * 512, kCuda);
  outer.mark("all");
  EXPECT_EQ(outer.timeline()[0].current_bytes, base);
  EXPECT_EQ(outer.timeline()[0].peak_bytes, base + 5 * 512);
}

}  // namespace
}  // namespace headroom::internal
