#pragma once

#include <stdexcept>
#include <string>

namespace headroom {

/// Thrown for a mistake of the caller. The message names the thing, what was expected and what was found.
class InvalidInput : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Thrown where sums of sizes or times do not fit int64, such as the time of a schedule that runs long ops many times.
class TooLarge : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

/// Thrown for a bug of headroom: an invariant did not hold.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_assertion(const char* condition, const char* file, int line);

}  // namespace headroom

/// Throws InternalError if `condition` is false, in every build. Not for inner loops.
#define HEADROOM_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::headroom::fail_assertion(#condition, __FILE__, __LINE__))
