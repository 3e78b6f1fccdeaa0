#include "headroom/algorithm/min_plus.h"

#include <array>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

template <typename Number, int Bytes>
struct VectorOf;
template <typename Number>
struct VectorOf<Number, 16> {
  using Type [[gnu::vector_size(16), gnu::may_alias]] = Number;
};
template <typename Number>
struct VectorOf<Number, 32> {
  using Type [[gnu::vector_size(32), gnu::may_alias]] = Number;
};
template <typename Number>
struct VectorOf<Number, 64> {
  using Type [[gnu::vector_size(64), gnu::may_alias]] = Number;
};

/// Computes the kernel in vectors of `Bytes`, two vectors at a time: with four rows that makes eight accumulators in
/// registers, which hides the latency of min and loads b once for all rows.
template <typename Number, int Bytes>
[[gnu::always_inline]] inline void min_plus_body(const Number* a, const Number* b, int64_t count, Number* best) {
  using Vector = typename VectorOf<Number, Bytes>::Type;
  constexpr int kVectors = 2;
  constexpr int kPerRow = kMinPlusWidth<Number> * static_cast<int>(sizeof(Number)) / Bytes;
  Vector* best_vectors = reinterpret_cast<Vector*>(best);
  for (int k = 0; k < kPerRow; k += kVectors) {
    Vector least[kMinPlusRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kMinPlusRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) least[r][v] = best_vectors[r * kPerRow + k + v];
    }
    const Vector* a_j = reinterpret_cast<const Vector*>(a) + k;
    const Vector* b_j = reinterpret_cast<const Vector*>(b) + k;
    for (int64_t j = 0; j < count; ++j, a_j += kMinPlusRows * kPerRow, b_j += kPerRow) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int r = 0; r < kMinPlusRows; ++r) {
          const Vector sum = a_j[r * kPerRow + v] + b_j[v];
          least[r][v] = sum < least[r][v] ? sum : least[r][v];
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kMinPlusRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) best_vectors[r * kPerRow + k + v] = least[r][v];
    }
  }
}

template <typename Number>
void min_plus_plain(const Number* a, const Number* b, int64_t count, Number* best) {
  min_plus_body<Number, 16>(a, b, count, best);
}

#if defined(__x86_64__)
template <typename Number>
[[gnu::target("avx2")]] void min_plus_avx2(const Number* a, const Number* b, int64_t count, Number* best) {
  min_plus_body<Number, 32>(a, b, count, best);
}

template <typename Number>
[[gnu::target("avx512f")]] void min_plus_avx512(const Number* a, const Number* b, int64_t count, Number* best) {
  min_plus_body<Number, 64>(a, b, count, best);
}
#endif

constexpr std::array kInstructionSets = {InstructionSet::kPlain, InstructionSet::kAvx2, InstructionSet::kAvx512};

size_t supported_count() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return 1;
  return __builtin_cpu_supports("avx512f") ? 3 : 2;
#else
  return 1;
#endif
}

}  // namespace

std::span<const InstructionSet> supported_instruction_sets() {
  return std::span<const InstructionSet>(kInstructionSets).first(supported_count());
}

template <typename Number>
MinPlusKernel<Number> min_plus_kernel(InstructionSet instruction_set) {
  switch (instruction_set) {
    case InstructionSet::kPlain:
      return min_plus_plain<Number>;
#if defined(__x86_64__)
    case InstructionSet::kAvx2:
      return min_plus_avx2<Number>;
    case InstructionSet::kAvx512:
      return min_plus_avx512<Number>;
#else
    case InstructionSet::kAvx2:
    case InstructionSet::kAvx512:
      break;
#endif
  }
  throw InternalError("no kernel for this instruction set");
}

template MinPlusKernel<uint32_t> min_plus_kernel<uint32_t>(InstructionSet instruction_set);
template MinPlusKernel<double> min_plus_kernel<double>(InstructionSet instruction_set);

}  // namespace headroom::internal
