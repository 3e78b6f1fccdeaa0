#include "headroom/algorithm/workers.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace headroom::internal {

int thread_count(int wanted) {
  return std::max(wanted > 0 ? wanted : static_cast<int>(std::thread::hardware_concurrency()), 1);
}

void run_workers(int count, const std::function<void(int)>& work) {
  // All memory for starting the threads is allocated before the first thread starts.
  std::vector<std::exception_ptr> errors(static_cast<size_t>(std::max(count, 1)));
  const auto guarded = [&](int worker) noexcept {
    try {
      work(worker);
    } catch (...) {
      errors[static_cast<size_t>(worker)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(errors.size());
    try {
      for (int worker = 1; worker < count; ++worker) others.emplace_back(guarded, worker);
    } catch (const std::system_error&) {  // The system starts no more threads.
    } catch (const std::bad_alloc&) {
    }
    guarded(0);
  }
  const auto error = std::ranges::find_if(errors, [](const std::exception_ptr& e) { return e != nullptr; });
  if (error != errors.end()) std::rethrow_exception(*error);
}

}  // namespace headroom::internal
