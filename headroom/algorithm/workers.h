#pragma once

#include <functional>

namespace headroom::internal {

/// Returns the number of threads to use if `wanted` are requested: as many as the machine has for 0, and always at
/// least 1.
int thread_count(int wanted);

/// Calls `work(i)` for i from 0 to `count` - 1 in parallel: work(0) on this thread, and each other call on a thread of
/// its own. Where the system starts no more threads, the remaining calls are skipped, so the calls that run must be
/// able to do all the work, for example from a common counter. Returns when all calls have returned, and then rethrows
/// the exception of the call with the smallest i that threw one.
void run_workers(int count, const std::function<void(int)>& work);

}  // namespace headroom::internal
