#pragma once

#include <cstdint>
#include <span>

namespace headroom::internal {

/// The instruction sets that the kernel below is compiled for. All of them give the same results, bit for bit.
enum class InstructionSet : uint8_t { kPlain, kAvx2, kAvx512 };

/// Returns the instruction sets of this machine, kPlain first and the fastest last.
std::span<const InstructionSet> supported_instruction_sets();

inline constexpr int kMinPlusRows = 4;
/// Numbers of a type in a block, which takes 128 bytes.
template <typename Number>
inline constexpr int kMinPlusWidth = 128 / static_cast<int>(sizeof(Number));

/// A function that computes one step of a min-plus product: for r < kMinPlusRows and k < kMinPlusWidth
///
///     best[r][k] = min( best[r][k],  min over 0 <= j < count of  a[j][r][k] + b[j][k] )
///
/// where a, b and best are contiguous and aligned to 64 bytes. No sum may round or overflow, so that their order does
/// not matter: doubles must be integers below 2^53 or infinity, and a + b must fit uint32_t.
template <typename Number>
using MinPlusKernel = void (*)(const Number* a, const Number* b, int64_t count, Number* best);

/// Returns the kernel for an instruction set that the machine has, for uint32_t or double.
template <typename Number>
MinPlusKernel<Number> min_plus_kernel(InstructionSet instruction_set);

}  // namespace headroom::internal
