// Browsers refuse a worker to a page that is read from the disk. There the search runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      this.inner.importScripts = () => {};  // of languages other than English
      this.loaded = new Promise((resolve) => {
        const script = this.inner.document.createElement("script");
        script.onload = resolve;
        script.src = url;
        this.inner.document.head.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
