// A Meter counts the allocations of all threads, and of forked processes.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "headroom/runtime/meter.h"

namespace headroom::internal {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

at::Tensor make_bytes(int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(kCpu)); }

TEST(Meter, FreedOnAnotherThread) {
  const Meter meter(kCpu);
  const int64_t base = meter.current_bytes();
  at::Tensor tensor = make_bytes(1234);
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(meter.current_bytes(), base);
  EXPECT_EQ(meter.peak_bytes(), base + 1234);
}

TEST(Meter, ThreadsTogether) {
  // Thread t allocates 1..1000 bytes times t + 1. All are kept until every thread has allocated 500500 * (1 + 2 + 3 + 4)
  // bytes. Then each thread frees the tensors of its neighbour.
  constexpr size_t kThreads = 4;
  constexpr int64_t kTotalBytes = 500500 * 10;
  const Meter meter(kCpu);
  const int64_t base = meter.current_bytes();
  std::array<std::vector<at::Tensor>, kThreads> tensors;
  std::atomic<int64_t> full_bytes = 0;
  std::barrier all_allocated(kThreads, [&]() noexcept { full_bytes = meter.current_bytes() - base; });
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 1; i <= 1000; ++i) tensors[t].push_back(make_bytes(i * static_cast<int64_t>(t + 1)));
      all_allocated.arrive_and_wait();
      tensors[(t + 1) % kThreads].clear();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(full_bytes, kTotalBytes);
  EXPECT_EQ(meter.current_bytes(), base);
  EXPECT_EQ(meter.peak_bytes(), base + kTotalBytes);
}

TEST(Meter, MarksDuringAStormLoseNoPeak) {
  constexpr uint64_t kThreads = 3;
  Meter whole(kCpu);
  Meter marked(kCpu);
  const int64_t base = whole.current_bytes();
  std::atomic<int> running = kThreads;
  std::array<int64_t, kThreads> kept_bytes{};
  std::array<int64_t, kThreads> max_bytes{};
  std::array<std::vector<at::Tensor>, kThreads> kept;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 20000; ++i) {
        if (random() % 2 == 0 || kept[t].empty()) {
          kept[t].push_back(make_bytes(static_cast<int64_t>(random() % 5000)));
          kept_bytes[t] += kept[t].back().numel();
        } else {
          std::swap(kept[t][random() % kept[t].size()], kept[t].back());
          kept_bytes[t] -= kept[t].back().numel();
          kept[t].pop_back();
        }
        max_bytes[t] = std::max(max_bytes[t], kept_bytes[t]);
      }
      --running;
    });
  }
  while (running > 0) marked.mark("storm");
  for (std::thread& thread : threads) thread.join();
  marked.mark("end");

  int64_t expected_bytes = base;
  for (const int64_t bytes : kept_bytes) expected_bytes += bytes;
  EXPECT_EQ(whole.current_bytes(), expected_bytes);
  int64_t peak_bytes = 0;
  for (const MemoryMark& mark : marked.timeline()) {
    EXPECT_LE(mark.current_bytes, mark.peak_bytes);
    peak_bytes = std::max(peak_bytes, mark.peak_bytes);
  }
  EXPECT_EQ(whole.peak_bytes(), peak_bytes);
  EXPECT_EQ(marked.peak_bytes(), peak_bytes);
  EXPECT_GE(peak_bytes - base, *std::ranges::max_element(max_bytes));
  EXPECT_LE(peak_bytes - base, max_bytes[0] + max_bytes[1] + max_bytes[2]);
}

TEST(Meter, AForkedProcessAllocatesToo) {
  const Meter meter(kCpu);
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    // Calls the allocator directly, so that a fork is likely to happen inside of it.
    while (!stop) static_cast<void>(allocator->allocate(64));
  });
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);  // Ends a child that waits for a lock that no thread holds.
      std::vector<at::Tensor> at_many_addresses;
      for (int64_t bytes = 1; bytes <= 500; ++bytes) at_many_addresses.push_back(make_bytes(bytes));
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace headroom::internal
