// The search of a site that is opened from the disk: browsers start no worker there, but load the same script in a frame.
// Loaded before the theme, whose offline plugin would load a script of this name from another host.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.isReady = new Promise((ready) => {
        const load = (source, done) => {
          const script = Object.assign(this.inside.document.createElement("script"), { src: source, onload: done });
          this.inside.document.head.append(script);
        };
        this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        this.inside.importScripts = (...urls) => Promise.all(urls.map((each) => new Promise((done) => load(each, done))));
        load(url, ready);
      });
    }

    postMessage(data) {
      this.isReady.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
