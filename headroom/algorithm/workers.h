#pragma once

#include <functional>

namespace headroom {

/// The number of threads to use where `wanted` are asked for: as many as the machine has for 0, never less than 1.
int thread_count(int wanted);

/// Calls `work(i)` for i from 0 to `count` - 1, side by side: work(0) on this thread, each other on one of its own. Where
/// the system starts no more threads, the rest is not called: whoever is must take on all there is to do, such as from a
/// common counter. Returns when all have returned; then rethrows what the first of them threw, if any did.
void run_workers(int count, const std::function<void(int)>& work);

}  // namespace headroom
