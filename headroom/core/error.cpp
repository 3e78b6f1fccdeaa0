#include "headroom/core/error.h"

namespace headroom {

void fail_assertion(const char* condition, const char* file, int line) {
  throw InternalError(std::string("internal error: ") + condition + " does not hold at " + file + ":" +
                      std::to_string(line));
}

}  // namespace headroom
