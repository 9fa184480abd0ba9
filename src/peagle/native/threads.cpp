#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peagle {

namespace {

constexpr int SPINS_IN_BARRIER = 4000;    // then give the core to whoever wants it
constexpr int SPINS_BEFORE_SLEEP = 20000;  // about a quarter of a millisecond

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) {
  for (std::size_t index = 1; index < threads; index++)
    workers_.emplace_back([this, index] { work_forever(index); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(sleeping_);
    stop_ = true;
    generation_++;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(Team&)>& work) {
  std::lock_guard<std::mutex> alone(one_at_a_time_);
  work_ = &work;
  for (auto& next : next_) next.store(0, std::memory_order_relaxed);
  sense_.store(false, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  if (!workers_.empty()) {
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  Team team(*this, 0);
  work(team);
  for (int spins = 0; finished_.load(std::memory_order_acquire) < workers_.size(); spins++) {
    if (spins < SPINS_IN_BARRIER) pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::work_forever(std::size_t index) {
  std::size_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && spins++ < SPINS_BEFORE_SLEEP)
      pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleeping_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    Team team(*this, index);
    (*work_)(team);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::barrier(bool& sense) {
  sense = !sense;
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) == workers_.size()) {
    waiting_.store(0, std::memory_order_relaxed);
    sense_.store(sense, std::memory_order_release);
    return;
  }
  for (int spins = 0; sense_.load(std::memory_order_acquire) != sense; spins++) {
    if (spins < SPINS_IN_BARRIER) pause();
    else std::this_thread::yield();
  }
}

}  // namespace peagle
