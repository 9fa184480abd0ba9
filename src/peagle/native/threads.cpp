#include "threads.h"

#include <unistd.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peagle {

namespace {

constexpr int SPINS_IN_BARRIER = 4000;    // then give the core to whoever wants it
// Longer than the time between two passes of an engine that is busy, whatever a pause takes.
constexpr std::chrono::microseconds AWAKE{1500};
constexpr int SPINS_PER_LOOK = 64;        // at the clock
// The caller works alone after a pass of which it waited half, at least so long.
constexpr std::chrono::milliseconds LONG_WAIT{2};
constexpr std::chrono::milliseconds FIRST_ALONE{20}, LONGEST_ALONE{640};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Crew::Crew(std::size_t others) {
  for (std::size_t index = 1; index <= others; index++)
    others_.emplace_back([this, index] { work_forever(index); });
}

Crew::~Crew() {
  {
    std::lock_guard<std::mutex> lock(sleeping_);
    stop_ = true;
    generation_++;
  }
  wake_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Crew::run(const std::function<void(Team&)>& work) {
  std::lock_guard<std::mutex> one(one_at_a_time_);
  const Clock::time_point began = Clock::now();
  const bool alone = began < alone_until_;
  working_ = alone ? 1 : others_.size() + 1;
  waited_ = Clock::duration::zero();
  work_ = &work;
  failure_ = nullptr;
  for (Counter& next : next_) next.value.store(0, std::memory_order_relaxed);
  waiting_.store(0, std::memory_order_relaxed);
  sense_.store(false, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  if (working_ > 1) {
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  work_once(0);
  // The others look at `work` until they are done, whatever happened here.
  give_way(0, [&] { return finished_.load(std::memory_order_acquire) >= working_ - 1; });
  if (working_ > 1) judge(began);
  if (failure_) std::rethrow_exception(failure_);
}

void Crew::work_forever(std::size_t index) {
  std::size_t seen = 0;
  for (;;) {
    const Clock::time_point sleepy = Clock::now() + AWAKE;
    for (int spins = 1; generation_.load(std::memory_order_acquire) == seen; spins++) {
      if (spins % SPINS_PER_LOOK == 0 && Clock::now() >= sleepy) break;
      pause();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleeping_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    work_once(index);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

void Crew::work_once(std::size_t index) {
  Team team(*this, index);
  try {
    (*work_)(team);
  } catch (const Abandoned&) {
  } catch (...) {
    std::lock_guard<std::mutex> lock(failing_);
    if (!failure_) failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

template <class Done>
void Crew::give_way(std::size_t index, const Done& done) {
  for (int spins = 0; spins < SPINS_IN_BARRIER; spins++) {
    if (done()) return;
    pause();
  }
  const Clock::time_point began = Clock::now();
  while (!done()) std::this_thread::yield();
  if (index == 0) waited_ += Clock::now() - began;
}

void Crew::barrier(std::size_t index, bool& sense) {
  sense = !sense;
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) == working_ - 1) {
    waiting_.store(0, std::memory_order_relaxed);
    sense_.store(sense, std::memory_order_release);
    return;
  }
  // A thread that failed never comes.
  give_way(index, [&] {
    return sense_.load(std::memory_order_acquire) == sense ||
           failed_.load(std::memory_order_acquire);
  });
  if (sense_.load(std::memory_order_acquire) != sense) throw Abandoned{};
}

void Crew::judge(Clock::time_point began) {
  const Clock::time_point now = Clock::now();
  if (waited_ < LONG_WAIT || 2 * waited_ < now - began) {
    alone_for_ = Clock::duration::zero();
    return;
  }
  alone_for_ = std::clamp<Clock::duration>(2 * alone_for_, FIRST_ALONE, LONGEST_ALONE);
  alone_until_ = now + alone_for_;
}

ThreadPool::ThreadPool(std::size_t threads)
    : size_(threads > 0 ? threads : 1),
      process_(getpid()),
      crew_(std::make_unique<Crew>(size_ - 1)) {}

ThreadPool::~ThreadPool() {
  // In a fork of its process a crew's threads do not exist: nobody can wait for them.
  if (process_ != getpid()) (void)crew_.release();
}

void ThreadPool::run(const std::function<void(Team&)>& work) {
  if (process_ != getpid()) {
    (void)crew_.release();
    crew_ = std::make_unique<Crew>(size_ - 1);
    process_ = getpid();
  }
  crew_->run(work);
}

}  // namespace peagle
