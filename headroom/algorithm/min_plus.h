#pragma once

#include <cstdint>
#include <span>

namespace headroom {

/// The instruction sets that the kernel below is compiled for. The results are the same, bit for bit.
enum class InstructionSet : uint8_t { kPlain, kAvx2, kAvx512 };

/// What this machine has, kPlain first, the fastest last.
std::span<const InstructionSet> supported_instruction_sets();

inline constexpr int kMinPlusRows = 4;
/// How many numbers of a kind make a block: 128 bytes.
template <typename Number>
inline constexpr int kMinPlusWidth = 128 / static_cast<int>(sizeof(Number));

/// One step of a min-plus product: for r < kMinPlusRows and k < kMinPlusWidth
///
///     best[r][k] = min( best[r][k],  min over 0 <= j < count of  a[j][r][k] + b[j][k] )
///
/// with a, b and best contiguous and aligned to 64 bytes. No sum may round or overflow, so that their order does not
/// matter: doubles are integers below 2^53 or infinity, and a + b fits uint32_t.
template <typename Number>
using MinPlusKernel = void (*)(const Number* a, const Number* b, int64_t count, Number* best);

/// The kernel for an instruction set that the machine has; for uint32_t and double.
template <typename Number>
MinPlusKernel<Number> min_plus_kernel(InstructionSet instruction_set);

}  // namespace headroom
